//! The batches of an epoch, which a thread of their own prepares while steps run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostics};
use of_runtime::Value;

use super::augmentation::Draw;
use super::batch_rows::BatchRows;
use super::data::Dataset;
use crate::error::error;

/// Batches in the order of an epoch. One waits while the next one is prepared.
pub struct Batches {
    prepared: Option<Receiver<Result<Vec<Value>, Diagnostics>>>,
    thread: Option<JoinHandle<()>>,
    waited: Duration,
}

impl Batches {
    /// Batches of `size` samples, in this order, without a last one that is not full. `draw` changes images at random; of each batch, the
    /// needed `rows` are read.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        data: &Arc<Dataset>,
        order: &[usize],
        size: usize,
        draw: Option<Draw>,
        rows: BatchRows,
    ) -> Result<Batches, Diagnostics> {
        let (data, size) = (Arc::clone(data), size.max(1));
        let list: Vec<Vec<usize>> = order.chunks_exact(size).map(<[usize]>::to_vec).collect();
        let (send, prepared) = sync_channel(1);
        let prepare = move || {
            for samples in list {
                let batch = data.batch_of_rows(&samples, draw.as_ref(), &rows);
                let failed = batch.is_err();
                // The receiver is gone where the training has ended.
                if send.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        let thread = Builder::new().name("batches".into()).spawn(prepare);
        let thread = thread.map_err(|e| error(Code::IO, format!("no thread can be started for the data: {e}")))?;
        Ok(Batches { prepared: Some(prepared), thread: Some(thread), waited: Duration::ZERO })
    }

    /// How long [`Iterator::next`] has waited for data.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Iterator for Batches {
    type Item = Result<Vec<Value>, Diagnostics>;

    fn next(&mut self) -> Option<Self::Item> {
        let began = Instant::now();
        let batch = self.prepared.as_ref()?.recv().ok();
        self.waited += began.elapsed();
        batch
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // The thread ends after the batch that it prepares.
        self.prepared = None;
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
