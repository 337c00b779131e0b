//! A service, and what runs it: started, contained, run again after a panic, stopped.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{backoff::Backoff, contain::Contained, warnings::Warnings};

/// The wait before a service that panicked runs again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// After how many panics in a row health has a warning.
const REPEATED: u32 = 3;

/// A service that has run for so long works again.
const STEADY: Duration = Duration::from_secs(60);

/// How long services may take to stop, once the consumers have ended.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// What a running inbox does beside handling messages.
pub(crate) trait Service: Send + Sync + 'static {
    /// Its name in the log and in health, as in `replayer of SQLite (DATABASE_URL)`; of one inbox no two are the same.
    fn name(&self) -> String;

    /// Works until `stop` is cancelled; a service that returns before has nothing to do. What fails in a way that waiting may mend
    /// is the service's own to repeat; a panic is logged, and after a back-off this is called again.
    fn run(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send;
}

impl<S: Service> Service for Arc<S> {
    fn name(&self) -> String {
        S::name(self)
    }

    fn run(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send {
        S::run(self, stop)
    }
}

/// Starts a service among the others.
type Start = Box<dyn FnOnce(&mut JoinSet<()>, CancellationToken) + Send>;

/// The services of an inbox, until it runs; they start with it.
#[derive(Default)]
pub(crate) struct Services(Vec<Start>);

impl Services {
    /// Adds a service. Where its panics are repeated, that is among the warnings.
    pub(crate) fn add(&mut self, service: impl Service, warnings: &Warnings) {
        let warnings = warnings.clone();
        self.0.push(Box::new(move |tasks, stop| {
            tasks.spawn(async move { keep_running(&service, &stop, &warnings).await });
        }));
    }

    /// Starts them. Dropped, what is returned stops them at once.
    pub(crate) fn start(self, stop: &CancellationToken) -> RunningServices {
        let mut tasks = JoinSet::new();
        for start in self.0 {
            start(&mut tasks, stop.clone());
        }
        RunningServices(tasks)
    }
}

/// Services that run.
pub(crate) struct RunningServices(JoinSet<()>);

impl RunningServices {
    /// Waits until they have stopped, for which they have been told to, or stops them after a moment.
    pub(crate) async fn stopped(mut self) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if timeout(STOP_WAIT, all).await.is_err() {
            tracing::warn!("a service did not stop in time and was stopped halfway");
        }
    }
}

/// Runs a service until it has ended or is told to stop, again after each panic.
async fn keep_running(service: &impl Service, stop: &CancellationToken, warnings: &Warnings) {
    let name = service.name();
    let mut panics = 0;
    while !stop.is_cancelled() {
        let mut run = Contained::new("a service", Box::pin(service.run(stop.clone())));
        let steady = Instant::now() + STEADY;
        let ended = match tokio::time::timeout_at(steady, &mut run).await {
            Ok(ended) => ended,
            Err(_) => {
                panics = 0;
                warnings.set(&name, Vec::new());
                run.await
            }
        };
        let Err(panic) = ended else { break };
        panics += 1;
        tracing::error!(service = name, error = panic, "a service panicked, and is run again");
        if panics >= REPEATED {
            let why = format!("the {name} panics each time it is run, {panics} times so far: {panic}");
            warnings.set(&name, vec![why]);
        }
        stop.run_until_cancelled(sleep(BACKOFF.pause(panics))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Panics so many times, then works.
    struct Failing {
        panics: u32,
        runs: Arc<AtomicU32>,
    }

    impl Service for Failing {
        fn name(&self) -> String {
            "failing service".to_owned()
        }

        async fn run(&self, stop: CancellationToken) {
            let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(run > self.panics, "run {run}");
            stop.cancelled().await;
        }
    }

    /// Runs one until it has run so often.
    async fn until(panics: u32, runs: u32) -> (RunningServices, CancellationToken, Warnings) {
        let (mut services, stop, warnings) = (Services::default(), CancellationToken::new(), Warnings::default());
        let counted = Arc::new(AtomicU32::new(0));
        let service = Failing {
            panics,
            runs: counted.clone(),
        };
        services.add(service, &warnings);
        let running = services.start(&stop);
        while counted.load(Ordering::SeqCst) < runs {
            sleep(Duration::from_millis(100)).await;
        }
        (running, stop, warnings)
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_panicked_runs_again_and_stops_when_told() {
        let (running, stop, warnings) = until(2, 3).await;
        assert_eq!(warnings.all(), Vec::<String>::new(), "twice is not repeated");
        stop.cancel();
        running.stopped().await;
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_panics_are_a_warning_until_it_has_run_for_a_while() {
        let (running, stop, warnings) = until(3, 4).await;
        let [warning] = &warnings.all()[..] else {
            panic!("{:?}", warnings.all())
        };
        assert!(
            warning.contains("failing service") && warning.contains("run 3"),
            "{warning}"
        );
        sleep(STEADY + Duration::from_secs(1)).await;
        assert_eq!(warnings.all(), Vec::<String>::new());
        stop.cancel();
        running.stopped().await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_its_back_off_stops_when_told() {
        let (running, stop, _) = until(u32::MAX, 5).await;
        stop.cancel();
        running.stopped().await;
    }
}
