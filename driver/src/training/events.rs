//! Event files of TensorBoard: scalars over steps.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use of_diag::Diagnostics;
use prost::Message;

use super::tfrecord;
use crate::error::io_error;

/// Source: TensorFlow, `tensorflow/core/util/event.proto`; fields that are not written are left out.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// Source: TensorFlow, `tensorflow/core/framework/summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    /// The field is one of a oneof, so it is present even for 0.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Writes an event file.
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// A new file in a folder, which is made if there is none. Its name has the time and the number of the process, so several
    /// trainings may write into one folder.
    ///
    /// # Errors
    /// When the folder or the file cannot be made.
    pub fn new(folder: &Path) -> Result<EventWriter, Diagnostics> {
        std::fs::create_dir_all(folder).map_err(|e| io_error(folder, "created", &e))?;
        let seconds = now() as u64;
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.of-opt.{}.0", std::process::id()));
        let file = File::create_new(&path).map_err(|e| io_error(&path, "created", &e))?;
        let mut out = EventWriter { path, file };
        out.write(0, What::FileVersion("brain.Event:2".into()))?;
        Ok(out)
    }

    /// Adds scalars at a step. They are in the file when this returns.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn scalars(&mut self, step: usize, scalars: &[(&str, f64)]) -> Result<(), Diagnostics> {
        let value =
            |(tag, value): &(&str, f64)| SummaryValue { tag: (*tag).to_owned(), simple_value: Some(*value as f32) };
        self.write(step, What::Summary(Summary { value: scalars.iter().map(value).collect() }))
    }

    fn write(&mut self, step: usize, what: What) -> Result<(), Diagnostics> {
        let event = Event { wall_time: now(), step: step as i64, what: Some(what) };
        let mut record = Vec::new();
        tfrecord::write(&mut record, &event.encode_to_vec())
            .and_then(|()| self.file.write_all(&record))
            .map_err(|e| io_error(&self.path, "written", &e).into())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_events_of_a_record_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::new(&dir.path().join("run")).unwrap();
        writer.scalars(3, &[("loss", 0.5), ("learning_rate", 0.0)]).unwrap();
        let files: Vec<_> = std::fs::read_dir(dir.path().join("run")).unwrap().map(|e| e.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        assert!(file.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
        let bytes = std::fs::read(file).unwrap();
        let events: Vec<Event> =
            tfrecord::read(&bytes).unwrap().into_iter().map(|record| Event::decode(record).unwrap()).collect();
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".into())));
        assert!(events[1].wall_time >= events[0].wall_time && events[0].wall_time > 1.7e9);
        let Some(What::Summary(summary)) = &events[1].what else { panic!("{events:?}") };
        let values: Vec<(&str, Option<f32>)> = summary.value.iter().map(|v| (v.tag.as_str(), v.simple_value)).collect();
        assert_eq!((events[1].step, values), (3, vec![("loss", Some(0.5)), ("learning_rate", Some(0.0))]));
    }
}
