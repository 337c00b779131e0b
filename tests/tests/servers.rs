//! The servers of the harness: each is seen to answer, to come back on its data after a crash, and to end with whoever
//! started it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use inbox_tests::servers::{kafka::Kafka, nats::Nats};

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

fn is_down(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err()
}

/// What nats-server says on connect, and its answer to a request.
fn nats_request(port: u16, subject: &str, payload: &str) -> (String, String) {
    let mut stream = connect(port);
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut info = String::new();
    lines.read_line(&mut info).expect("its first line");
    let size = payload.len();
    let request =
        format!("CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {size}\r\n{payload}\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    while !answer.starts_with('{') {
        answer.clear();
        assert!(lines.read_line(&mut answer).expect("an answer") > 0, "it hung up");
    }
    (info, answer)
}

#[test]
fn nats_comes_back_on_its_data() {
    let nats = Nats::start().expect("started");
    let stream = r#"{"name":"KEPT","subjects":["kept"],"storage":"file"}"#;
    let (info, answer) = nats_request(nats.port(), "$JS.API.STREAM.CREATE.KEPT", stream);
    assert!(info.starts_with("INFO {"), "{info}");
    assert!(
        info.contains(r#""version":"2.15.1""#) && info.contains(r#""jetstream":true"#),
        "{info}"
    );
    assert!(answer.contains(r#""did_create":true"#), "{answer}");

    for end in [Nats::kill, Nats::stop] {
        end(&nats);
        assert!(is_down(nats.port()) && is_down(nats.monitor_port()));
        nats.resume().expect("started again");
        let (_, answer) = nats_request(nats.port(), "$JS.API.STREAM.INFO.KEPT", "");
        assert!(answer.contains(r#""subjects":["kept"]"#), "{answer}");
    }
    let port = nats.port();
    drop(nats);
    assert!(is_down(port));
}

/// Kafka's answer to a request, without its length and its number.
fn kafka_request(port: u16, api: i16, version: i16, body: &[u8]) -> Vec<u8> {
    const NUMBER: [u8; 4] = [0, 0, 0, 7];
    const NO_CLIENT_ID: [u8; 2] = [0xff, 0xff];
    let (api, version) = (api.to_be_bytes(), version.to_be_bytes());
    let request = [&api[..], &version, &NUMBER, &NO_CLIENT_ID, body].concat();
    let length = u32::try_from(request.len()).expect("short").to_be_bytes();
    let mut stream = connect(port);
    stream.write_all(&[&length[..], &request].concat()).expect("sent");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..4], NUMBER);
    answer.split_off(4)
}

fn api_versions(port: u16) -> i16 {
    let answer = kafka_request(port, 18, 0, &[]);
    i16::from_be_bytes([answer[0], answer[1]])
}

/// The error code of making a topic with one partition.
fn create_topic(port: u16, name: &str) -> i16 {
    let length = u8::try_from(name.len()).expect("short");
    let mut body = vec![0, 0, 0, 1, 0, length];
    body.extend(name.as_bytes());
    // One partition, one replica, nothing assigned or configured; thirty seconds; in earnest.
    body.extend([0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x75, 0x30, 0]);
    let answer = kafka_request(port, 19, 2, &body);
    // The delay, the number of topics, the name: then the code.
    let code = 4 + 4 + 2 + name.len();
    i16::from_be_bytes([answer[code], answer[code + 1]])
}

#[test]
fn kafka_comes_back_on_its_data() {
    const EXISTS: i16 = 36;
    let kafka = Kafka::start().expect("started");
    assert_eq!(api_versions(kafka.port()), 0);
    assert_eq!(create_topic(kafka.port(), "kept"), 0, "{}", kafka.log());

    for end in [Kafka::kill, Kafka::stop] {
        end(&kafka);
        assert!(is_down(kafka.port()));
        kafka.resume().expect("started again");
        assert_eq!(api_versions(kafka.port()), 0);
        assert_eq!(create_topic(kafka.port(), "kept"), EXISTS, "{}", kafka.log());
    }
    let port = kafka.port();
    drop(kafka);
    assert!(is_down(port));
}

/// The program `servers` with these servers and a shell's script, in an environment that names none.
fn servers(servers: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_servers"));
    command.args(servers).args(["--", "/bin/sh", "-c", script]);
    for variable in ["DATABASE_URL", "NATS_URL", "KAFKA_BROKERS", "INBOX_BROKER_URL"] {
        command.env_remove(variable);
    }
    command
}

fn run(names: &[&str], script: &str) -> (Output, String, String) {
    let output = servers(names, script).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn port_of(address: &str) -> u16 {
    let (_, port) = address.rsplit_once(':').expect("host and port");
    port.parse().expect("a port")
}

const SHOW: &str = r#"echo "$NATS_URL $KAFKA_BROKERS $INBOX_BROKER_URL"; exit 7"#;

#[test]
fn a_command_runs_with_one_broker() {
    let (output, out, err) = run(&["nats"], SHOW);
    assert_eq!(output.status.code(), Some(7), "{err}");
    let (nats, rest) = out.trim_end().split_once(' ').expect("three words");
    assert!(nats.starts_with("nats://127.0.0.1:"), "{out}");
    assert_eq!(rest, format!(" {nats}"));
    assert!(is_down(port_of(nats)));
}

#[test]
fn a_command_runs_with_both_brokers() {
    let (output, out, err) = run(&["nats", "kafka"], SHOW);
    assert_eq!(output.status.code(), Some(7), "{err}");
    let words: Vec<&str> = out.trim_end_matches('\n').split(' ').collect();
    let [nats, kafka, ""] = words[..] else {
        panic!("two addresses and no broker: {out}")
    };
    assert!(
        nats.starts_with("nats://127.0.0.1:") && kafka.starts_with("127.0.0.1:"),
        "{out}"
    );
    assert!(err.contains("INBOX_BROKER_URL is not set"), "{err}");
    assert!(is_down(port_of(nats)) && is_down(port_of(kafka)));
}

#[test]
fn a_command_runs_with_kafka_as_the_broker() {
    let (output, out, err) = run(&["kafka"], SHOW);
    assert_eq!(output.status.code(), Some(7), "{err}");
    let (kafka, broker) = out.trim().split_once(' ').expect("two words");
    assert_eq!(broker, format!("kafka://{kafka}"));
}

/// Where the server is after `servers` has started it; the script ends with the standard input that it reads.
fn started(name: &str, variable: &str) -> (Child, u16) {
    let script = format!("echo ${variable}; read line");
    let mut process = servers(&[name], &script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut address = String::new();
    BufReader::new(process.stdout.as_mut().expect("piped"))
        .read_line(&mut address)
        .expect("an address");
    (process, port_of(address.trim_end()))
}

#[test]
fn servers_end_with_the_process_that_started_them() {
    for (name, variable) in [("nats", "NATS_URL"), ("kafka", "KAFKA_BROKERS")] {
        let (mut process, port) = started(name, variable);
        assert!(!is_down(port));
        process.kill().expect("killed");
        process.wait().expect("it ends");
        let start = Instant::now();
        while !is_down(port) {
            assert!(start.elapsed() < Duration::from_mins(2), "{name} goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_missing_tool_is_named_in_one_line() {
    let nothing = tempfile::tempdir().expect("a folder");
    for name in ["nats", "kafka"] {
        let output = servers(&[name], "true")
            .env("PATH", nothing.path())
            .output()
            .expect("it runs");
        let err = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{err}");
        let said = err
            .lines()
            .filter(|line| !line.starts_with("downloading "))
            .collect::<Vec<_>>();
        let [line] = said[..] else { panic!("one line: {err}") };
        assert!(line.contains("is missing; install it: apt-get install -y "), "{line}");
    }
}
