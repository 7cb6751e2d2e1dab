//! Numbers of the data that name nothing, such as classes without a score; and what the loss of an evaluation is the mean of.

use std::path::Path;
use std::sync::Arc;

use of_driver::training::{JobEvent, JobOptions, Schedule, ScheduleKind, TrainingJob};
use parquet::column::writer::ColumnWriter;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

const BATCH: usize = 8;

pub fn entropy() -> Loss {
    Loss::named("cross-entropy").unwrap()
}

pub fn constant() -> Schedule {
    Schedule { kind: ScheduleKind::Constant, rate: 0.01, warmup: 0 }
}

/// The samples with these labels.
pub fn labelled(x: &Tensor, labels: &[i64], batch: usize) -> Dataset {
    let given = TrainOptions { batch, ..options("adam", &Hyperparameters::default(), entropy()) };
    let wanted = columns(&Model::from_module(model(4, entropy())), &given).unwrap();
    let labels = Tensor::from_slice(&[SAMPLES], labels).unwrap();
    Dataset::of_columns(vec![("x".into(), x.clone()), ("labels".into(), labels)], &wanted).unwrap()
}

#[test]
fn the_loss_of_an_evaluation_is_the_mean_over_labels_that_count() {
    let dir = tempfile::tempdir().unwrap();
    let (x, labels, _) = data(dir.path(), entropy());
    let mut labels = labels.to_i64s().unwrap();
    labels[..7].fill(-100);
    // The last batch has no label that counts.
    labels[16..].fill(-100);
    let loss = |batch: usize| {
        let given = TrainOptions { batch, ..options("adam", &Hyperparameters::default(), entropy()) };
        let mut trainer = trainer(model(4, entropy()), &given, &[]);
        trainer.evaluate(&labelled(&x, &labels, batch)).unwrap().loss
    };
    let (parts, whole) = (loss(BATCH), loss(SAMPLES));
    assert!((parts - whole).abs() < 1e-6 * whole, "{parts} instead of {whole}");
}

/// Writes 24 rows: x is six numbers, and labels are those given.
fn write_rows(path: &Path, labels: &[i64]) {
    let schema = "message m { required group x (LIST) { repeated group list { required float element; } } required int64 labels; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::default())).unwrap();
    let mut own = writer.next_row_group().unwrap();
    while let Some(mut column) = own.next_column().unwrap() {
        match column.untyped() {
            ColumnWriter::FloatColumnWriter(w) => {
                let repeated: Vec<i16> = (0..SAMPLES * FEATURES).map(|i| i16::from(i % FEATURES > 0)).collect();
                w.write_batch(&vec![0.5; SAMPLES * FEATURES], Some(&vec![1; SAMPLES * FEATURES]), Some(&repeated))
                    .unwrap()
            }
            ColumnWriter::Int64ColumnWriter(w) => w.write_batch(labels, None, None).unwrap(),
            _ => unreachable!(),
        };
        column.close().unwrap();
    }
    own.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn classes_without_a_score_are_named_in_memory_and_in_files() {
    let dir = tempfile::tempdir().unwrap();
    let given = TrainOptions { batch: BATCH, ..options("adam", &Hyperparameters::default(), entropy()) };
    let wanted = columns(&Model::from_module(model(4, entropy())), &given).unwrap();
    let mut labels = vec![1; SAMPLES];
    let good = dir.path().join("good.parquet");
    write_rows(&good, &labels);
    labels[17] = 3;
    let bad = dir.path().join("bad.parquet");
    write_rows(&bad, &labels);
    let read = |path: &Path| Dataset::read(&[path.into()], &wanted, &ImageOptions::default()).unwrap();
    let (x, ..) = data(dir.path(), entropy());
    let in_memory = || labelled(&x, &labels, BATCH);
    for (training, validation, place) in [
        (read(&bad), read(&good), "training"),
        (read(&good), read(&bad), "validation"),
        (in_memory(), read(&good), "training"),
        (read(&good), in_memory(), "validation"),
    ] {
        let (mut trainer, data) = (trainer(model(4, entropy()), &given, &[]), Arc::new(training));
        let job = JobOptions { shuffle: false, ..JobOptions::new(1, constant()) };
        let mut observe = |_: JobEvent<'_>| Ok(());
        let done = TrainingJob::new(&mut trainer, (&data, Some(&validation)), &job, &mut observe);
        let errors = done.and_then(|mut job| job.run(None)).unwrap_err().to_string();
        let words = format!(
            "sample 17 of the {place} data (the first is 0) has the label 3, and the output 'y' has scores for 0 to 2"
        );
        assert!(errors.contains(&words), "{words}: {errors}");
    }
}

#[test]
fn rows_that_a_table_lacks_are_named() {
    let mut b = Builder::new("table");
    let ids = b.input("ids", Type::tensor(DType::I64, vec![Dim::symbol("n")]));
    let table = b.constant(Tensor::from_slice(&[5, CLASSES], &[0.1f32; 5 * CLASSES]).unwrap()).unwrap();
    let y = b.op(of_ops::movement::Gather { axis: 0 }, &[table, ids]).unwrap();
    let mut module = b.finish(&[("y", y)]).unwrap();
    let func = module.funcs.get_mut("main").unwrap();
    of_ir::Rewriter::new(&mut func.graph, "test").set_name(table, "embedding.weight");
    let given = TrainOptions { batch: 4, ..options("adam", &Hyperparameters::default(), entropy()) };
    let wanted = columns(&Model::from_module(module.clone()), &given).unwrap();
    // Numbers below 0 count from the end.
    for (last, is_fine) in [(4, true), (-5, true), (5, false), (-6, false)] {
        let ids = Tensor::from_slice(&[4], &[0, 1, 2, last]).unwrap();
        let labels = Tensor::from_slice(&[4], &[0i64; 4]).unwrap();
        let data = Dataset::of_columns(vec![("ids".into(), ids), ("labels".into(), labels)], &wanted).unwrap();
        let mut trainer = trainer(module.clone(), &given, &[]);
        let (options, data) = (JobOptions::new(1, constant()), Arc::new(data));
        let mut observe = |_: JobEvent<'_>| Ok(());
        let done = TrainingJob::new(&mut trainer, (&data, None), &options, &mut observe);
        match done.and_then(|mut job| job.run(None)) {
            Ok(()) => assert!(is_fine, "{last}"),
            Err(errors) => {
                let words = format!(
                    "sample 3 of the training data (the first is 0) has {last} for 'ids', and 'embedding.weight' has the rows 0 to 4"
                );
                assert!(!is_fine && errors.to_string().contains(&words), "{errors}");
            }
        }
    }
}

#[test]
fn labels_of_other_extents_have_a_hint_at_the_axis_of_classes() {
    let column = |name: &str, dtype: DType, rest: &[i64]| {
        let dims = std::iter::once(Dim::symbol("n")).chain(rest.iter().map(|extent| Dim::from(*extent))).collect();
        of_driver::training::ColumnSpec { name: name.into(), ty: Type::tensor(dtype, dims) }
    };
    // The output is [n, 2, 9]: with classes along axis 1, labels are [n, 9].
    let wanted = [column("x", DType::F32, &[1]), column("labels", DType::I64, &[9])];
    let (x, labels) = (Tensor::from_slice(&[4, 1], &[0f32; 4]), Tensor::from_slice(&[4, 2], &[0i64; 8]));
    let columns = vec![("x".into(), x.unwrap()), ("labels".into(), labels.unwrap())];
    let refused = Dataset::of_columns(columns, &wanted).unwrap_err().to_string();
    assert!(
        refused.contains("the data of 'labels' is of shape [4, 2]") && refused.contains("--class-axis -1"),
        "{refused}"
    );
}
