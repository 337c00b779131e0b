//! The transaction-pooling proxy pgbouncer, from the system's packages.

use std::{fs, path::Path};

use super::{Server, child::data_folder, command, free_port, up_to_three_times};

/// A pooler that shares a few connections to the server among all its clients. Dropped, it is killed.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _server: Option<Server>,
}

impl PgBouncer {
    /// A pooler in transaction mode with `connections` connections to the server on `port`. `None`, with a line that says
    /// so, when the program is not installed.
    ///
    /// # Panics
    ///
    /// When it doesn't start.
    #[must_use]
    pub fn before(postgres: u16, connections: u32) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.exists());
        let Some(program) = program else {
            println!("skipped: pgbouncer is missing; install it: apt-get install -y pgbouncer");
            return None;
        };
        let folder = data_folder("pgbouncer", |_| {}).expect("a folder");
        let config = folder.join("pgbouncer.ini");
        let users = folder.join("users.txt");
        fs::write(&users, "\"postgres\" \"\"\n").expect("written");
        let (mut port, mut running) = (0, None);
        up_to_three_times(|| {
            port = free_port();
            let text = format!(
                "[databases]\n* = host=127.0.0.1 port={postgres}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n\
                 unix_socket_dir=\nauth_type=trust\nauth_file={}\npool_mode=transaction\ndefault_pool_size={connections}\n\
                 max_client_conn=200\nignore_startup_parameters=extra_float_digits\n",
                users.display()
            );
            fs::write(&config, text).expect("written");
            let mut command = command(program, true);
            command.arg(&config).current_dir(&folder);
            let mut server = Server::start(command, folder.join("server.log")).expect("started");
            server.wait_until(|server| server.log().contains("process up"))?;
            running = Some(server);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
        Some(Self { port, _server: running })
    }

    /// The URL of a database of the server behind it.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}
