//! The threads that serve connections.
//!
//! Each thread has a runtime of its own, and a connection stays on its thread. A runtime of several threads would wake another one
//! for almost every request, to look for work that there is not.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// The threads.
pub struct Network {
    workers: Vec<Worker>,
    stop: watch::Sender<bool>,
}

struct Worker {
    runtime: Handle,
    /// Its connections.
    connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// A connection of a thread, as long as it is open.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Network {
    /// How long threads have for what cannot be interrupted when they end.
    const PATIENCE: Duration = Duration::from_millis(100);

    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(threads: usize) -> std::io::Result<Network> {
        let stop = watch::Sender::new(false);
        let mut network = Network { workers: Vec::new(), stop };
        for number in 0..threads.max(1) {
            let runtime = Builder::new_current_thread().enable_all().thread_name("of-blocking").build()?;
            let handle = runtime.handle().clone();
            let mut stop = network.stop.subscribe();
            let run = move || {
                // Without a sender, the server is gone.
                let _ = runtime.block_on(stop.wait_for(|stop| *stop));
                runtime.shutdown_timeout(Self::PATIENCE);
            };
            let thread = std::thread::Builder::new().name(format!("of-network-{number}")).spawn(run)?;
            network.workers.push(Worker { runtime: handle, connections: Arc::default(), thread });
        }
        Ok(network)
    }

    /// Runs a connection on the thread that has the fewest.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let Some(worker) = self.workers.iter().min_by_key(|worker| worker.connections.load(Relaxed)) else { return };
        worker.connections.fetch_add(1, Relaxed);
        let counted = Counted(Arc::clone(&worker.connections));
        worker.runtime.spawn(async move {
            let _counted = counted;
            connection.await;
        });
    }

    /// Ends all connections, and the threads. A run that takes longer than a moment goes on.
    pub fn stop(&self) {
        let _ = self.stop.send(true);
        let begun = Instant::now();
        while self.workers.iter().any(|worker| !worker.thread.is_finished()) && begun.elapsed() < 2 * Self::PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}
