//! Apache Kafka as a child process: one that is broker and controller.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use rustix::process::Signal;

use super::{child::data_folder, command, download::downloaded, free_port, run, service::Service, up_to_three_times};

const VERSION: &str = "4.3.1";
/// What it says when it takes connections.
const READY: &str = "Kafka Server started";
/// Sixteen bytes in base64.
const CLUSTER_ID: &str = "aW5ib3gtcnVudGltZS10cw";
const CONFIG: &str = "server.properties";
/// What has the runtime in it.
const JAVA: &str = "default-jre-headless";

/// A server of our own. Dropped, it is killed and its data removed.
#[derive(Debug)]
pub struct Kafka {
    classes: PathBuf,
    service: Service,
    port: u16,
}

impl Kafka {
    /// A new server.
    ///
    /// # Errors
    ///
    /// When a tool is missing that is needed to get or to run it, or it doesn't start; the text says what to do.
    pub fn start() -> Result<Self, String> {
        let classes = installed()?.join("*");
        let folder = data_folder("kafka", |_| {}).map_err(|error| format!("no folder for the data: {error}"))?;
        let mut kafka = Self {
            classes,
            service: Service::new(folder),
            port: 0,
        };
        kafka.choose_ports()?;
        kafka.format()?;
        up_to_three_times(|| {
            kafka.choose_ports()?;
            kafka.resume()
        })?;
        Ok(kafka)
    }

    fn choose_ports(&mut self) -> Result<(), String> {
        self.port = free_port();
        let file = self.service.folder().join(CONFIG);
        fs::write(&file, config(self.port, free_port())).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Prepares the folder of the data, which it refuses to start without.
    fn format(&self) -> Result<(), String> {
        let mut format = Command::new("java");
        format.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        format.arg(&self.classes).arg("kafka.tools.StorageTool");
        format.args(["format", "-t", CLUSTER_ID, "-c", CONFIG]);
        run(format.current_dir(self.service.folder()), JAVA)
    }

    /// Starts it again on the same data, after a [`stop`](Self::stop) or a [`kill`](Self::kill).
    ///
    /// # Errors
    ///
    /// When it doesn't start.
    pub fn resume(&self) -> Result<(), String> {
        let mut java = command(Path::new("java"), false);
        // The last two save a second at the start.
        java.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        java.arg(&self.classes).args(["kafka.Kafka", CONFIG]);
        self.service.start(java, |log| {
            log.contains(READY) && TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        })
    }

    /// Stops it.
    pub fn stop(&self) {
        self.service.stop(Signal::TERM);
    }

    /// Kills it as a crash of its process would.
    pub fn kill(&self) {
        self.service.kill();
    }

    /// Everything that it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.service.log()
    }

    /// The port for clients, which it keeps when it is started again.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its address, as a client's list of brokers has it.
    #[must_use]
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("kafka://{}", self.brokers())
    }
}

/// With the short session a broker that was killed is back in four seconds: it waits for the end of its own old one.
fn config(port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=data
num.partitions=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
group.consumer.min.session.timeout.ms=500
group.consumer.session.timeout.ms=2000
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=200
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
offsets.topic.replication.factor=1
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"
    )
}

/// Its classes and those that it needs; the last lets it log.
const POM: &str = "<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>inbox-tests</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
";

/// The server that the tests of this process share.
#[derive(Debug)]
pub enum Shared {
    /// Started for this process.
    Own(Kafka),
    /// Somebody else's.
    Given(String),
}

impl Shared {
    /// The shared server, started at first use.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    pub fn get() -> &'static Self {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(|| match given() {
            Some(brokers) => Self::Given(brokers),
            None => Self::Own(Kafka::start().unwrap_or_else(|error| panic!("{error}"))),
        })
    }

    /// Its address, as a client's list of brokers has it.
    #[must_use]
    pub fn brokers(&self) -> String {
        match self {
            Self::Own(kafka) => kafka.brokers(),
            Self::Given(brokers) => brokers.clone(),
        }
    }
}

/// A server that a test may stop and kill, also where there is one for the others.
///
/// # Panics
///
/// When it can't be started.
#[must_use]
pub fn own() -> Kafka {
    Kafka::start().unwrap_or_else(|error| panic!("{error}"))
}

fn given() -> Option<String> {
    std::env::var("KAFKA_BROKERS")
        .ok()
        .filter(|brokers| !brokers.is_empty())
}

/// Where the classes are, downloaded with Maven at first use.
fn installed() -> Result<PathBuf, String> {
    downloaded(&format!("kafka-{VERSION}"), |scratch, complete| {
        let pom = scratch.join("pom.xml");
        fs::write(&pom, POM.replace("{VERSION}", VERSION)).map_err(|error| format!("{}: {error}", pom.display()))?;
        run(
            Command::new("mvn")
                .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"])
                .arg(format!("-DoutputDirectory={}", complete.display()))
                .current_dir(scratch),
            "maven",
        )
    })
}
