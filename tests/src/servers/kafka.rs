//! Apache Kafka as child processes that are broker and controller: one, or three together.

use std::{
    fs, io,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;

use super::{child::data_folder, command, download::downloaded, free_port, run, service::Service, up_to_three_times};

const VERSION: &str = "4.3.1";
/// What it says when it takes connections.
const READY: &str = "Kafka Server started";
/// What it starts with, without what it doesn't need for a test: that saves seconds of processor time.
const JAVA_OPTIONS: [&str; 4] = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"];
/// Its classes as Java has them in memory, which saves half of the processor time of a start.
const ARCHIVE: &str = "classes.jsa";
/// Sixteen bytes in base64.
const CLUSTER_ID: &str = "aW5ib3gtcnVudGltZS10cw";
const CONFIG: &str = "server.properties";
/// What has the runtime in it.
const JAVA: &str = "default-jre-headless";

/// A server of our own. Dropped, it is killed and its data removed.
#[derive(Debug)]
pub struct Kafka {
    service: Service,
    port: u16,
    /// What a secure one has besides.
    secure: Option<Secure>,
    node: Node,
}

/// The other listeners of a secure server.
#[derive(Clone, Copy, Debug)]
struct Secure {
    /// The port on which clients say who they are.
    sasl: u16,
    /// The port on which they speak TLS.
    tls: u16,
}

/// A user of a [secure](Kafka::start_secure) server, who may do everything, with the password.
pub const ADMIN: (&str, &str) = ("alice", "alice-password");
/// A user who may do nothing but what [`grant`](super::acl::grant) lets her do.
pub const USER: (&str, &str) = ("bob", "bob-password");

/// What a secure server has besides. Who doesn't say who they are, on the other listener, may do everything.
const SECURE: &str = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL
listener.name.ssl.ssl.keystore.type=PEM
listener.name.ssl.ssl.keystore.location=keystore.pem
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_alice=\"alice-password\" user_bob=\"bob-password\";
listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \
required unsecuredLoginStringClaim_sub=\"broker\";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:alice
";

/// A node's place among those of its cluster.
#[derive(Clone, Debug)]
struct Node {
    id: usize,
    /// The ports on which the nodes agree, this one's among them, in the order of their ids.
    controllers: Vec<u16>,
}

impl Node {
    /// The only one.
    fn alone() -> Self {
        Self {
            id: 1,
            controllers: vec![free_port()],
        }
    }
}

impl Kafka {
    /// A new server.
    ///
    /// # Errors
    ///
    /// When a tool is missing that is needed to get or to run it, or it doesn't start; the text says what to do.
    pub fn start() -> Result<Self, String> {
        let mut kafka = Self::formatted(Node::alone())?;
        up_to_three_times(|| {
            kafka.configure(Node::alone())?;
            kafka.launch()
        })?;
        Ok(kafka)
    }

    /// A new server with two other listeners: one on which users log in with SASL, and have the rights that
    /// [`grant`](super::acl::grant) gives them, and one with TLS.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_secure() -> Result<Self, String> {
        let mut kafka = Self::formatted(Node::alone())?;
        up_to_three_times(|| {
            kafka.secure = Some(Secure {
                sasl: free_port(),
                tls: free_port(),
            });
            kafka.configure(Node::alone())?;
            kafka.launch()
        })?;
        Ok(kafka)
    }

    /// Three new servers that are one cluster.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_three() -> Result<Vec<Self>, String> {
        let mut cluster = Vec::new();
        up_to_three_times(|| {
            cluster.clear();
            let controllers: Vec<_> = (0..3).map(|_| free_port()).collect();
            for id in 1..=3 {
                let controllers = controllers.clone();
                cluster.push(Self::formatted(Node { id, controllers })?);
            }
            let _turn = turn();
            // None is ready before the others are there.
            std::thread::scope(|scope| {
                let started: Vec<_> = cluster.iter().map(|node| scope.spawn(|| node.boot())).collect();
                started.into_iter().try_for_each(|node| node.join().expect("no panic"))
            })
        })?;
        Ok(cluster)
    }

    /// One that has not been started, whose folder is prepared.
    fn formatted(node: Node) -> Result<Self, String> {
        let formatted = prepared()?.join(node.id.to_string());
        let kafka = Self::unformatted(node)?;
        let data = kafka.service.folder().join("data");
        copy_files(&formatted, &data).map_err(|error| format!("{}: {error}", data.display()))?;
        Ok(kafka)
    }

    /// One whose folder has no data.
    fn unformatted(node: Node) -> Result<Self, String> {
        let folder = data_folder("kafka", |_| {}).map_err(|error| format!("no folder for the data: {error}"))?;
        let mut kafka = Self {
            service: Service::new(folder),
            port: 0,
            secure: None,
            node: node.clone(),
        };
        kafka.configure(node)?;
        Ok(kafka)
    }

    fn configure(&mut self, node: Node) -> Result<(), String> {
        self.port = free_port();
        self.node = node;
        // Kafka wants the key and the certificate in one file.
        let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tls/server");
        let read = |end| fs::read_to_string(format!("{tls}.{end}")).map_err(|error| format!("{tls}.{end}: {error}"));
        let keystore = self.service.folder().join("keystore.pem");
        fs::write(keystore, read("key")? + &read("pem")?).map_err(|error| format!("the keystore: {error}"))?;
        let file = self.service.folder().join(CONFIG);
        fs::write(&file, self.config()).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Prepares the folder of the data, which it refuses to start without.
    fn format(&self) -> Result<(), String> {
        let mut format = Command::new("java");
        format.args(JAVA_OPTIONS).arg(installed()?.join("*"));
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", CONFIG]);
        run(format.current_dir(self.service.folder()), JAVA)
    }

    /// With the short session a broker that was killed is back in four seconds: it waits for the end of its own old one.
    fn config(&self) -> String {
        let Self {
            port,
            node: Node { id, controllers },
            ..
        } = self;
        let (nodes, controller) = (controllers.len(), controllers[id - 1]);
        let voters = (1..)
            .zip(controllers)
            .map(|(id, port)| format!("{id}@127.0.0.1:{port}"));
        let voters: Vec<_> = voters.collect();
        let others = self
            .secure
            .map(|Secure { sasl, tls }| format!(",SASL_PLAINTEXT://127.0.0.1:{sasl},SSL://127.0.0.1:{tls}"));
        let others = others.unwrap_or_default();
        let secure = self.secure.map_or("", |_| SECURE);
        format!(
            "process.roles=broker,controller
node.id={id}
controller.quorum.voters={}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{others}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{others}
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
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=300
offsets.topic.replication.factor={nodes}
offsets.topic.num.partitions=3
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor={nodes}
share.coordinator.state.topic.min.isr=1
{secure}",
            voters.join(",")
        )
    }

    /// Starts it again on the same data, after a [`stop`](Self::stop) or a [`kill`](Self::kill).
    ///
    /// # Errors
    ///
    /// When it doesn't start.
    pub fn resume(&self) -> Result<(), String> {
        up_to_three_times(|| self.launch())
    }

    fn launch(&self) -> Result<(), String> {
        let _turn = turn();
        self.boot()
    }

    fn boot(&self) -> Result<(), String> {
        let archive = prepared()?.join(ARCHIVE);
        let archive = archive
            .exists()
            .then(|| format!("-XX:SharedArchiveFile={}", archive.display()));
        self.start_java(archive)
    }

    fn start_java(&self, option: Option<String>) -> Result<(), String> {
        let mut java = command(Path::new("java"), false);
        java.args(option).args(JAVA_OPTIONS).arg(installed()?.join("*"));
        java.args(["kafka.Kafka", CONFIG]);
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

    /// The address of the listener of a secure server on which users log in.
    ///
    /// # Panics
    ///
    /// When it isn't secure.
    #[must_use]
    pub fn sasl_brokers(&self) -> String {
        format!("127.0.0.1:{}", self.secure.expect("a secure server").sasl)
    }

    /// The address of the listener of a secure server that speaks TLS.
    ///
    /// # Panics
    ///
    /// When it isn't secure.
    #[must_use]
    pub fn tls_brokers(&self) -> String {
        format!("127.0.0.1:{}", self.secure.expect("a secure server").tls)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("kafka://{}", self.brokers())
    }
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

/// The server that all tests of a process share, or the one that `KAFKA_BROKERS` names.
pub type Shared = super::Shared<Kafka>;

impl Shared {
    /// The shared server, started at first use.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    pub fn get() -> &'static Self {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(given(), Kafka::start))
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

/// What every start needs, prepared once: a formatted folder for each node, and the archive of the classes. Without the
/// archive a server starts all the same, and slower.
fn prepared() -> Result<PathBuf, String> {
    installed()?;
    downloaded(&format!("kafka-{VERSION}-prepared"), |_, complete| {
        let copied =
            |from: &Path, to: &Path| copy_files(from, to).map_err(|error| format!("{}: {error}", to.display()));
        for id in 1..=3 {
            let controllers = (0..3).map(|_| free_port()).collect();
            let node = Kafka::unformatted(Node { id, controllers })?;
            node.format()?;
            copied(&node.service.folder().join("data"), &complete.join(id.to_string()))?;
        }
        let node = Kafka::unformatted(Node::alone())?;
        copied(&complete.join("1"), &node.service.folder().join("data"))?;
        let archive = format!("-XX:ArchiveClassesAtExit={}", complete.join(ARCHIVE).display());
        node.start_java(Some(archive))?;
        node.stop();
        Ok(())
    })
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Servers of one process start one after the other: several at once would take the processor from the tests for long.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}
