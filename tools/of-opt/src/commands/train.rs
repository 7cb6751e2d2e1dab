//! `of-opt train`: trains a model on data, and writes the trained model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use of_diag::{Code, Diagnostics};
use of_driver::training::{
    Augmentation, Clipping, DataOptions, Dataset, EndedJob, JobOptions, LOSSES, Loss, OPTIMIZERS, Optimizer, Pruning,
    Role as ParameterRole, Rule, TextOptions, TextSamples, TrainOptions, Trainer, columns, named,
};
use of_driver::zoo::{self, ZooModel};
use of_driver::{Model, Observer, SessionOptions, count, error};
use of_plan::PlanFile;

use super::train_steps::{Connection, job_options, run_job};
use super::{train_adapters, train_classes, train_flags, train_weights};
use crate::arguments::{Codegen, ModelFile, PrecisionArg, image_options};
use crate::console::Console;
use crate::deferral::{self, Work};
use crate::downloads::local_files;
use crate::exit;
use crate::ranks::{self, RankOptions, Role};
use crate::signals;
use crate::snapshot_place::snapshot_place;
use crate::telemetry::{JobTrace, TraceFlags};

/// Flags.
#[derive(Args, Debug)]
#[command(
    mut_arg("precision", |precision| precision.value_parser(step_precision())),
    after_help = "MODEL may be a configuration, CONFIG.toml: the key `model`, and keys that are called as the flags. Flags override it.

DATA is in one of these formats:
  DIR                          a folder of images for each class, such as DIR/cat/1.jpg
  FILE.tar, FILE.tar.gz        a WebDataset: KEY.jpg and KEY.cls, or KEY.NAME.npy for each input
  FILE.npz, NAME=FILE.npy      NumPy's arrays by the names of inputs and labels
  FILE.csv                     a table: labels by name, all else is the only input, or inputs by names
  FILE.parquet                 Parquet: columns by the names of inputs and labels, of numbers or encoded images
  FILE.arrow, FILE.feather     Arrow, files and streams, and Feather
  FILE.tfrecord                TFRecord of tf.train.Example: features by names of inputs and labels, or image/encoded
  FILE.ofrecord, part-00000    OFRecord of OneFlow
  NAME=FILE.idx, NAME=…-ubyte  IDX, as of MNIST, also compressed (.gz)
  FILE.bin                     CIFAR-10 and CIFAR-100
  FILE.txt, FILE.jsonl         texts, with --tokenizer; also a column of texts of Parquet or Arrow
  synthetic:SAMPLES[:SEED]     data that a model of the zoo makes itself
Images are JPEG, PNG, WebP, BMP, TIFF, JPEG 2000 or PNM. Several files are one after the other, but for
NumPy and IDX, whose files are for one input each, and folders.
https://…/FILE#sha256=HASH in the place of a file is downloaded once."
)]
pub struct Train {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// Training data: a folder that has a folder of images for each class, or files: WebDataset, NumPy, CSV, Parquet, Arrow,
    /// TFRecord, OFRecord, IDX, CIFAR, texts. The formats are listed below
    #[arg(long, value_name = "DATA", num_args = 1..)]
    pub data: Vec<OsString>,
    /// Validation data in the same formats, or a part of --data that is held out, such as 0.1. Folders of images are of the
    /// classes that the training data has
    #[arg(long, value_name = "DATA|PART", num_args = 1..)]
    pub validation: Vec<OsString>,
    /// Mean of each image channel, subtracted from pixels scaled to 0..1: 0.485,0.456,0.406
    #[arg(long, value_name = "M,…", value_delimiter = ',')]
    pub image_mean: Vec<f64>,
    /// Standard deviation of each image channel, which divides pixels after the mean is subtracted: 0.229,0.224,0.225
    #[arg(long, value_name = "S,…", value_delimiter = ',')]
    pub image_std: Vec<f64>,
    /// Show a random part of each training image, of at least this part of its area, with sides of 3:4 to 4:3: 0.08
    #[arg(long, value_name = "AREA", value_parser = part, allow_negative_numbers = true, help_heading = "Random changes of training images")]
    pub random_crop: Option<f64>,
    /// Swap left and right of every other training image
    #[arg(long, help_heading = "Random changes of training images")]
    pub random_flip: bool,
    /// Change brightness, contrast and saturation of training images by factors from 1 - X to 1 + X: 0.4
    #[arg(long, value_name = "X", value_parser = part, allow_negative_numbers = true, help_heading = "Random changes of training images")]
    pub color_jitter: Option<f64>,
    /// Train on sums of two samples and of their labels, weighted by a number of Beta(ALPHA, ALPHA): 0.2. Classes become probabilities
    #[arg(long, value_name = "ALPHA", value_parser = positive, allow_negative_numbers = true, help_heading = "Random changes of training images")]
    pub mixup: Option<f64>,
    /// Show the centre of each validation image: this part of the sides of the largest centred one that has the shape of the input
    /// [default: 0.875 with --random-crop, otherwise whole images]
    #[arg(long, value_name = "PART", value_parser = share, allow_negative_numbers = true, help_heading = "Random changes of training images")]
    pub validation_crop: Option<f64>,
    /// Texts of FILE.txt, or of FILE.jsonl with one in each line, as tokens of this tokenizer.json
    #[arg(long, value_name = "FILE.json", requires = "sequence_length", help_heading = "Texts")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample
    #[arg(long, value_name = "N", requires = "tokenizer", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24), help_heading = "Texts")]
    pub sequence_length: Option<usize>,
    /// What a sample is [default: blocks]
    #[arg(long, value_enum, value_name = "WHAT", requires = "tokenizer", help_heading = "Texts")]
    pub text_samples: Option<TextSamplesArg>,
    /// The field of a line that has the text [default: text]
    #[arg(long, value_name = "NAME", requires = "tokenizer", help_heading = "Texts")]
    pub text_field: Option<String>,
    /// The token that is put behind each text, such as '<|endoftext|>'
    #[arg(long, value_name = "TOKEN", requires = "tokenizer", help_heading = "Texts")]
    pub end_token: Option<String>,
    /// The token that fills short texts up [default: that of the tokenizer]
    #[arg(long, value_name = "TOKEN", requires = "tokenizer", help_heading = "Texts")]
    pub padding_token: Option<String>,
    /// The trained model: .onnx, or .safetensors for the parameters alone; may be repeated. The names of classes that folders of
    /// images have are written next to it, into NAME.labels.txt, for 'of-opt run --top 1 --labels NAME.labels.txt'
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// What is made small
    #[arg(long, value_name = "LOSS", default_value = "cross-entropy", value_parser = PossibleValuesParser::new(LOSSES))]
    pub loss: String,
    /// Part of each label that goes to all classes alike, for cross-entropy
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = from_0_to_1, allow_negative_numbers = true)]
    pub label_smoothing: f64,
    /// The axis of classes of the output, for cross-entropy: -1 for most language models
    #[arg(long, value_name = "AXIS", default_value_t = 1, allow_negative_numbers = true)]
    pub class_axis: i64,
    /// A label that does not count, for cross-entropy [default: -100]
    #[arg(long, value_name = "CLASS", allow_negative_numbers = true)]
    pub ignore_index: Option<i64>,
    /// The error at which huber becomes linear [default: 1]
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub huber_delta: Option<f64>,
    /// Weight of label 1 in the focal loss; that of label 0 is 1 - X
    #[arg(long, value_name = "X", default_value_t = 0.25, value_parser = from_0_to_1, allow_negative_numbers = true)]
    pub focal_alpha: f64,
    /// Power of the error in the focal loss
    #[arg(long, value_name = "X", default_value_t = 2.0, value_parser = not_negative, allow_negative_numbers = true)]
    pub focal_gamma: f64,
    /// The class that stands for no label, for ctc
    #[arg(long, value_name = "CLASS", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub ctc_blank: i64,
    /// What similarities are divided by, for contrastive
    #[arg(long, value_name = "X", default_value_t = 0.5, value_parser = positive, allow_negative_numbers = true)]
    pub temperature: f64,
    /// The similarity below which a pair is different enough, for cosine-embedding
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub margin: f64,
    /// Validation also shows the part of labels that are among the K classes of the largest scores, for cross-entropy: 5
    #[arg(long, value_name = "K", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24))]
    pub top_k: Option<usize>,
    /// The output that the loss is of [default: the first]
    #[arg(long, value_name = "NAME")]
    pub loss_of: Option<String>,
    /// The name of the labels in the data
    #[arg(long, value_name = "NAME", default_value = "labels")]
    pub labels: String,
    /// How parameters change: an optimizer, or a file of the IR with a function of parameter, gradient, rate, count, decay
    /// and states that returns the next parameter and states (RULE.of)
    #[arg(long, value_name = "NAME|FILE", default_value = "adamw", value_parser = OptimizerParser)]
    pub optimizer: String,
    /// The learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE", default_value_t = 1e-3, value_parser = not_negative, allow_negative_numbers = true)]
    pub learning_rate: f64,
    /// How the learning rate changes
    #[arg(long, value_enum, value_name = "COURSE", default_value = "cosine")]
    pub schedule: ScheduleArg,
    /// The power of the part of the training that is left, for --schedule polynomial [default: 2]
    #[arg(long, value_name = "P", value_parser = positive, allow_negative_numbers = true)]
    pub schedule_power: Option<f64>,
    /// Epochs after which --schedule step multiplies the learning rate by --lr-gamma, each time; those of --warmup count [default: a
    /// third of all]
    #[arg(long, value_name = "EPOCHS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub lr_step_size: Option<usize>,
    /// What --schedule step multiplies the learning rate by [default: 0.1]
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub lr_gamma: Option<f64>,
    /// The learning rate at the end of --schedule cosine [default: 0]
    #[arg(long, value_name = "RATE", value_parser = not_negative, allow_negative_numbers = true)]
    pub lr_min: Option<f64>,
    /// Steps during which the learning rate rises from 0
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub warmup: usize,
    /// Momentum of sgd, rmsprop and lars [default: 0, for lars 0.9]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// Look ahead with sgd's momentum
    #[arg(long, requires = "momentum")]
    pub nesterov: bool,
    /// Decay rates of the means of gradients and of their squares, of adam, adamw and lamb [default: 0.9,0.999]
    #[arg(long, value_name = "B1,B2", value_delimiter = ',', value_parser = decay_rate, allow_negative_numbers = true)]
    pub betas: Vec<f64>,
    /// What is added to a divisor, of all optimizers but sgd and ftrl [default: 1e-8; 1e-6 for lamb and adadelta, 1e-10 for adagrad]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub eps: Option<f64>,
    /// Decay rate of the mean of squares of rmsprop [default: 0.99]
    #[arg(long, value_name = "X", value_parser = decay_rate, allow_negative_numbers = true)]
    pub rmsprop_alpha: Option<f64>,
    /// Decay rate of the means of adadelta [default: 0.9]
    #[arg(long, value_name = "X", value_parser = decay_rate, allow_negative_numbers = true)]
    pub adadelta_rho: Option<f64>,
    /// Trust coefficient of lars [default: 0.001]
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub lars_trust: Option<f64>,
    /// beta of ftrl, which lowers the first learning rates [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub ftrl_beta: Option<f64>,
    /// Strength of the L1 regularization of ftrl; that of L2 is --weight-decay [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub ftrl_l1: Option<f64>,
    /// Weight decay [default: 0, for adamw and lamb 0.01]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Parameters without weight decay, such as '*.bias'. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub no_decay: Vec<String>,
    /// Scale all gradients so that their norm is at most X; with --clip-value after that
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub clip_norm: Option<f64>,
    /// Limit each element of a gradient to X
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub clip_value: Option<f64>,
    /// Begin with the parameters that a file has under the same names: .onnx, or .safetensors, which may be a state dict of PyTorch, a
    /// trained model or a snapshot
    #[arg(long, value_name = "FILE", help_heading = "Fine-tuning")]
    pub weights: Option<PathBuf>,
    /// Parameters that --weights leaves as the model has them, such as 'fc.*'; those of the zoo are random. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', requires = "weights", help_heading = "Fine-tuning")]
    pub weights_ignore: Vec<String>,
    /// Put random values into the last layer, which then gives so many scores: for other classes than the model was trained on
    #[arg(long, value_name = "CLASSES", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 24), help_heading = "Fine-tuning")]
    pub reset_head: Option<usize>,
    /// Parameters that keep their values, such as 'backbone.*'. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub freeze: Vec<String>,
    /// Average parameters over steps with this decay, such as 0.999; evaluation and the trained model use the averages
    #[arg(long, value_name = "DECAY", value_parser = part, allow_negative_numbers = true)]
    pub ema: Option<f64>,
    /// Update parameters after every K steps, by the mean of their gradients, with the learning rate of the last of these steps
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub accumulate: usize,
    /// Weights that are zero throughout: 0.5 is a part of each tensor, global:0.5 of all together, by magnitude; channels:0.3 of
    /// the output channels of each, by norm; 2:4 keeps two of four neighbours
    #[arg(long, value_name = "PART|N:M")]
    pub prune: Option<Pruning>,
    /// Weights that are pruned [default: all]. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', requires = "prune")]
    pub prune_target: Vec<String>,
    /// Train low-rank adapters of this rank instead of the parameters; ALPHA / RANK scales them [default: RANK]
    #[arg(long, value_name = "RANK[:ALPHA]", value_parser = lora, group = "adapters", help_heading = "Adapters")]
    pub lora: Option<(usize, f64)>,
    /// Go on with adapters in the layout of PEFT, whose adapter_config.json is in the same folder
    #[arg(long, value_name = "FILE.safetensors", group = "adapters", help_heading = "Adapters")]
    pub adapter: Option<PathBuf>,
    /// Weights of products and convolutions that get adapters [default: all that one product reads]. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', requires = "lora", help_heading = "Adapters")]
    pub lora_target: Vec<String>,
    /// How weights below adapters are stored [default: model]
    #[arg(long, value_enum, value_name = "TYPE", requires = "adapters", help_heading = "Adapters")]
    pub lora_base: Option<LoraBaseArg>,
    /// Write the model with the adapters added to its weights, instead of separate
    #[arg(long, requires = "adapters", help_heading = "Adapters")]
    pub merge: bool,
    /// Products that --precision leaves in f32: names or operators of ONNX nodes, such as '/head/*'. Comma-separated or repeated
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', requires = "precision")]
    pub keep_f32: Vec<String>,
    /// Samples of a step
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub batch: usize,
    /// How often all samples are used
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub epochs: usize,
    /// End the training after N epochs without a better validation
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Validation")]
    pub patience: Option<usize>,
    /// How much better than the best epoch another one must be to count as better, for --patience and --keep-best [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true, help_heading = "Validation")]
    pub min_delta: Option<f64>,
    /// Write the parameters of the epoch with the best validation, instead of the last one; --output has the best so far after each epoch
    #[arg(long, help_heading = "Validation")]
    pub keep_best: bool,
    /// What of the validation --patience and --keep-best watch [default: loss]
    #[arg(long, value_enum, value_name = "METRIC", help_heading = "Validation")]
    pub monitor: Option<MonitorArg>,
    /// Use the samples in their order, in every epoch
    #[arg(long)]
    pub no_shuffle: bool,
    /// Shuffles the data, and gives random numbers; one seed gives one result on one machine
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write a snapshot here at the end of each epoch, and when Ctrl-C or SIGTERM ends the training, from which --resume goes on: a file, or an object of a store,
    /// s3://BUCKET/NAME.safetensors, whose keys and region are in the variables AWS_…
    #[arg(long, value_name = "FILE.safetensors|URL")]
    pub snapshot: Option<PathBuf>,
    /// Write the snapshot after every N steps as well, unless the one before is still being written
    #[arg(long, value_name = "N", requires = "snapshot", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub snapshot_every: Option<usize>,
    /// Go on from --snapshot if it exists
    #[arg(long, requires = "snapshot")]
    pub resume: bool,
    /// How often ranks that are lost are started again, while the others wait for them with their state; each rank keeps copies in
    /// memory of its own state and of what only the rank before it has
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Ranks")]
    pub max_restarts: u32,
    /// Make these copies after every K steps: so many steps are done again after a loss
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = "Ranks", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub peer_copy_every: usize,
    /// Write the plan of the training, for inspect and profile; its programs are 'train' and 'eval'
    #[arg(long, value_name = "FILE.plan")]
    pub plan: Option<PathBuf>,
    /// Write the IR of the training step before it is compiled: 'of-opt FILE.of --passes differentiate' shows its gradients
    #[arg(long, value_name = "FILE.of")]
    pub step_ir: Option<PathBuf>,
    /// Write the plan or the IR, and train nothing: 'of-opt simulate' predicts the time of a step on the mesh
    #[arg(long)]
    pub compile_only: bool,
    /// Write loss, learning rate, throughput and validation here, as events of TensorBoard
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Print a line of JSON for each epoch
    #[arg(long)]
    pub json: bool,
    /// Print the configuration that file and flags give, as TOML, and end
    #[arg(long)]
    pub print_config: bool,
    /// Ranks as processes.
    #[command(flatten)]
    pub ranks: RankOptions,
    /// Traces.
    #[command(flatten)]
    pub traces: TraceFlags,
    /// Code generation.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Courses of the learning rate.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleArg {
    /// It stays.
    Constant,
    /// It falls linearly to 0.
    Linear,
    /// It falls to 0 as a power of the part that is left.
    Polynomial,
    /// It falls to --lr-min as half a cosine.
    Cosine,
    /// It is multiplied by --lr-gamma after every --lr-step-size epochs.
    Step,
    /// It rises for 30 % of the training and falls for the rest.
    OneCycle,
}

/// What a sample of texts is.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextSamplesArg {
    /// A block of all texts one after the other; a text file is one text.
    Blocks,
    /// A text, cut off or filled up; each line of a text file is one.
    Texts,
}

/// What of the validation is watched.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorArg {
    /// The loss, which becomes small.
    Loss,
    /// The part of right labels, which becomes large.
    Accuracy,
}

/// How weights below adapters are stored.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraBaseArg {
    /// As the model has them.
    Model,
    /// 8-bit integers with a scale for every 64.
    Int8,
    /// 4-bit integers with a scale for every 64.
    Int4,
}

/// The precisions of a training step, in which products of integers have no gradient.
fn step_precision() -> impl TypedValueParser<Value = PrecisionArg> {
    let all = PrecisionArg::value_variants().iter().filter(|precision| **precision != PrecisionArg::Int8);
    PossibleValuesParser::new(all.filter_map(ValueEnum::to_possible_value))
        .try_map(|name| PrecisionArg::from_str(&name, false))
}

/// A positive number.
fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0).ok_or_else(|| "a positive number is needed".into())
}

/// A number of at least 0.
fn not_negative(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "a number of at least 0 is needed".into())
}

/// Any number but infinities.
fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(|| "a number is needed".into())
}

/// A number from 0 to 1.
fn from_0_to_1(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(|| "a number from 0 to 1 is needed".into())
}

/// A number above 0 and of at most 1.
fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| *x > 0.0 && *x <= 1.0).ok_or_else(|| "a number above 0, at most 1, is needed".into())
}

/// A number of at least 0 and below 1.
fn decay_rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x| *x >= 0.0 && *x < 1.0)
        .ok_or_else(|| "a number of at least 0, below 1, is needed".into())
}

/// A number between 0 and 1.
fn part(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|x| *x > 0.0 && *x < 1.0).ok_or_else(|| "a number between 0 and 1 is needed".into())
}

/// `RANK` or `RANK:ALPHA`.
fn lora(text: &str) -> Result<(usize, f64), String> {
    let (rank, alpha) = text.split_once(':').unwrap_or((text, text));
    let rank: Option<usize> = rank.parse().ok().filter(|rank| (1..=65536).contains(rank));
    rank.zip(positive(alpha).ok()).ok_or_else(|| "a rank is needed, or RANK:ALPHA, such as 8:16".into())
}

/// Executes the subcommand.
///
/// # Errors
/// When the model cannot be trained, or data or files do not fit.
pub fn train(c: &Train, console: &Console) -> Result<(), Diagnostics> {
    let job = JobTrace::begin(&c.traces, "of-opt train")?;
    let result = train_traced(c, &job, console);
    job.end(result)
}

fn train_traced(c: &Train, job: &JobTrace, console: &Console) -> Result<(), Diagnostics> {
    for (flag, given) in [("--data", !c.data.is_empty()), ("--output", c.compile_only || !c.output.is_empty())] {
        if !given {
            return Err(exit::usage(format!("{flag} is needed, on the command line or in a configuration")).into());
        }
    }
    if c.compile_only && c.plan.is_none() && c.step_ir.is_none() {
        return Err(exit::usage("--compile-only writes nothing: give --plan or --step-ir").into());
    }
    check_outputs(&c.output)?;
    check_snapshot(c.snapshot.as_deref())?;
    train_flags::check(c)?;
    let role = ranks::role(&c.ranks)?;
    if c.max_restarts > 0 {
        ranks::check_restarts(&c.ranks, &role)?;
    }
    match &role {
        Role::All => {}
        // Every process would train the whole model, and write the same files.
        _ if c.codegen.mesh.is_none() => {
            return Err(exit::usage("several processes train on a mesh: give --mesh, such as 'cpu[2]'").into());
        }
        Role::Launcher(job) => {
            let _interrupts = c.snapshot.as_ref().map(|_| deferral::defer(Work::Ranks));
            return match ranks::launch(job, &c.ranks, c.max_restarts)? {
                Some(signal) => signals::end_in_order(signal),
                None => Ok(()),
            };
        }
        Role::Rank(_) => {}
    }
    ranks::serve_metrics(&c.ranks, &role)?;
    let mut options = options(c)?;
    options.step_ir = c.step_ir.clone().filter(|_| !matches!(&role, Role::Rank(placement) if placement.rank > 0));
    let zoo = zoo::named(&c.model.model)?;
    if let Some(zoo) = &zoo {
        options.frozen.extend(zoo.spec.model.frozen.iter().map(|pattern| (*pattern).to_owned()));
    }
    let mut model = of_driver::model::open_for_training(&c.model.model, console)?;
    let prepared = train_weights::prepare(c, zoo.as_ref(), &mut model, console)?;
    let wanted = columns(&model, &options).map_err(|errors| match &zoo {
        Some(zoo) => hinted(errors, &format!("the loss of '{}' is {}", zoo.spec.model.name, zoo.spec.model.loss)),
        None => errors,
    })?;
    let images = image_options(&c.image_mean, &c.image_std)?;
    let has_probabilities = options.loss.axis_of_probabilities().is_some();
    let reading = DataOptions { images, text: text_options(c), has_probabilities, ..DataOptions::default() };
    let progress = console.progress("reading data");
    let (data, validation) = datasets(c, zoo.as_ref(), &wanted, &reading, console)?;
    let data = Arc::new(data);
    drop(progress);
    let steps = data.len() / c.batch;
    if steps == 0 {
        let what = format!("the data has {}, fewer than the {} of a step", count(data.len(), "sample"), c.batch);
        return Err(error(Code::INPUT, what).hint("give a smaller --batch").into());
    }
    let schedule = train_flags::schedule(c);
    let late = train_flags::late_warmup(c, steps);
    let unused_scores = train_classes::check(&model, &options, &data, validation.as_ref(), zoo.as_ref())?;
    options.extents = data.extents(&wanted)?;
    if !c.codegen.calibration.is_empty() {
        return Err(exit::usage("--calibration has no effect on a training").into());
    }
    let compile = c.codegen.options()?;
    let threads = ranks::threads(&c.ranks, &role, &compile)?;
    let session = SessionOptions { threads, profile: false, memory: ranks::memory(&c.ranks, &role, compile.memory)? };
    let rests: Vec<usize> = validation.iter().map(|data| data.len() % c.batch).collect();
    let connection = Connection::default();
    let join = |plan: &PlanFile| match &role {
        Role::Rank(placement) => connection.join(c, placement, plan),
        Role::All | Role::Launcher(_) => Ok(None),
    };
    let say = || {
        unused_scores.iter().chain(&late).for_each(|warning| console.diagnostic(warning));
        prepared.iter().for_each(|line| console.note(line));
    };
    let plans = ranks::plans(&role);
    let compiled = Trainer::compile(model, &options, &rests, &compile, session, console, plans.as_ref());
    if c.compile_only && matches!(role, Role::All) {
        let compiled = compiled?;
        say();
        return c.plan.as_ref().map_or(Ok(()), |path| compiled.write_plan(path));
    }
    let mut trainer = match compiled.and_then(|compiled| compiled.open(&join)) {
        // The process that this one replaces was lost after the results were written.
        Err(_) if connection.ended() == Some(EndedJob::InOrder) => return connection.done(),
        made => made?,
    };
    let reports = trainer.reports();
    if reports {
        say();
    }
    if let Some(path) = c.plan.as_ref().filter(|_| reports) {
        trainer.write_plan(path)?;
    }
    if c.compile_only {
        drop(trainer);
        return connection.done();
    }
    if reports {
        let is_synthetic = c.data.iter().any(|file| file.to_string_lossy().starts_with(zoo::SYNTHETIC));
        describe(&trainer, &data, is_synthetic, console);
    }
    let place = c.snapshot.as_deref().map(snapshot_place).transpose()?;
    let work = if matches!(role, Role::All) { Work::Own } else { Work::Rank };
    let interrupts = place.as_ref().map(|_| deferral::defer(work));
    let interruption =
        || deferral::deferred().filter(|_| interrupts.is_some()).and_then(|signal| u8::try_from(signal).ok());
    let again = match &c.snapshot {
        Some(path) => format!("start it again with --resume: it goes on from the snapshot '{}'", path.display()),
        None => "start it again, with --snapshot FILE and --resume to go on from the last snapshot next time".into(),
    };
    let is_profiled = |step| job.takes(step);
    let options = JobOptions {
        snapshots: place,
        zoo: zoo.as_ref(),
        interruption: &interruption,
        ..job_options(c, schedule, &is_profiled)
    };
    let data = (&data, validation.as_ref());
    let trained = run_job(&mut trainer, data, &options, (&join, &connection), (c, job, console));
    let interrupted = trained.map_err(|errors| ranks::explained_end(&role, &again, errors))?;
    drop(trainer);
    if let Some(signal) = interrupted {
        ranks::say_that_the_job_is_interrupted(signal);
        connection.done()?;
        signals::end_in_order(signal.into());
    }
    connection.done()
}

impl ScheduleArg {
    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            ScheduleArg::Constant => "constant",
            ScheduleArg::Linear => "linear",
            ScheduleArg::Polynomial => "polynomial",
            ScheduleArg::Cosine => "cosine",
            ScheduleArg::Step => "step",
            ScheduleArg::OneCycle => "one-cycle",
        }
    }
}

/// A format that is not known should not wait for the end of a training.
fn check_outputs(paths: &[PathBuf]) -> Result<(), Diagnostics> {
    let known = |path: &Path| ["onnx", "safetensors"].iter().any(|e| path.extension().is_some_and(|own| own == *e));
    if let Some(path) = paths.iter().find(|path| !known(path)) {
        let what = format!("'{}' ends in neither .onnx nor .safetensors", path.display());
        return Err(error(Code::INPUT, what).into());
    }
    paths.iter().try_for_each(|path| check_folder(path))
}

/// As [`check_outputs`], for snapshots.
fn check_snapshot(path: Option<&Path>) -> Result<(), Diagnostics> {
    // A store says itself what is wrong.
    let Some(path) = path.filter(|path| !path.to_string_lossy().starts_with("s3:")) else { return Ok(()) };
    if path.extension().is_none_or(|own| own != "safetensors") {
        let what = format!("the snapshot '{}' does not end in .safetensors", path.display());
        return Err(error(Code::INPUT, what).hint("its name says what it is: --snapshot NAME.safetensors").into());
    }
    check_folder(path)
}

/// Rejects a file in a folder that is not there.
fn check_folder(path: &Path) -> Result<(), Diagnostics> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Some(folder) = folder.filter(|folder| !folder.is_dir()) else { return Ok(()) };
    let what = format!("'{}' cannot be written: '{}' is no folder", path.display(), folder.display());
    Err(error(Code::IO, what).hint("make the folder first, or give a path in another one").into())
}

/// Names of optimizers, and files of rules.
#[derive(Clone)]
struct OptimizerParser;

impl TypedValueParser for OptimizerParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        match value.to_str().filter(|text| is_rule(text)) {
            Some(path) => Ok(path.to_owned()),
            None => PossibleValuesParser::new(OPTIMIZERS).parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(OPTIMIZERS.into_iter().map(PossibleValue::new)))
    }
}

fn is_rule(optimizer: &str) -> bool {
    Path::new(optimizer).extension().is_some_and(|extension| extension == "of")
}

/// The optimizer that a file of the IR has.
fn rule(c: &Train) -> Result<Box<dyn Optimizer>, Diagnostics> {
    let model = Model::open(&c.optimizer)?;
    Ok(Box::new(Rule::new(&model.module, c.weight_decay)?))
}

fn options(c: &Train) -> Result<TrainOptions, Diagnostics> {
    let unknown = |what: &str| Diagnostics::from(error(Code::INPUT, format!("unknown {what}")));
    let optimizer = match is_rule(&c.optimizer) {
        true => rule(c)?,
        false => named(&c.optimizer, &train_flags::hyperparameters(c)).ok_or_else(|| unknown("optimizer"))?,
    };
    let mut loss = Loss::named(&c.loss).ok_or_else(|| unknown("loss"))?;
    train_flags::set_loss(c, &mut loss);
    if c.mixup.is_some() && matches!(loss, Loss::CrossEntropy { .. }) {
        loss = Loss::SoftCrossEntropy { smoothing: 0.0, axis: 1 };
    }
    match &mut loss {
        Loss::CrossEntropy { smoothing, axis, .. } | Loss::SoftCrossEntropy { smoothing, axis } => {
            (*smoothing, *axis) = (c.label_smoothing, c.class_axis)
        }
        _ if c.label_smoothing != 0.0 || c.class_axis != 1 => {
            let what = format!("--label-smoothing and --class-axis have no effect on the loss {}", c.loss);
            return Err(error(Code::INPUT, what).into());
        }
        _ => {}
    }
    let clipping = Clipping { value: c.clip_value, norm: c.clip_norm };
    let adapters = train_adapters::adapters(c)?;
    Ok(TrainOptions {
        output: c.loss_of.clone(),
        labels: c.labels.clone(),
        clipping,
        frozen: c.freeze.clone(),
        no_decay: c.no_decay.clone(),
        average: c.ema,
        accumulate: c.accumulate,
        keep_f32: c.keep_f32.clone(),
        seed: c.seed,
        pruning: c.prune,
        prune_targets: c.prune_target.clone(),
        lora: adapters,
        top_k: c.top_k,
        ..TrainOptions::new(loss, optimizer, c.batch)
    })
}

/// The same errors, with a hint.
fn hinted(errors: Diagnostics, hint: &str) -> Diagnostics {
    Diagnostics(errors.0.into_iter().map(|error| error.hint(hint)).collect())
}

/// Data of files, or what a model of the zoo makes.
fn read(
    files: &[OsString],
    zoo: Option<&ZooModel>,
    wanted: &[of_driver::training::ColumnSpec],
    reading: &DataOptions,
    console: &Console,
) -> Result<Dataset, Diagnostics> {
    let is_synthetic = |file: &OsString| file.to_string_lossy().starts_with(zoo::SYNTHETIC);
    match (files, zoo) {
        ([text], Some(zoo)) if is_synthetic(text) => zoo.synthetic(&text.to_string_lossy(), wanted),
        _ if files.iter().any(is_synthetic) => {
            let what = "synthetic data is made by models of the zoo, and is all of the data";
            Err(error(Code::INPUT, what).hint("of-opt zoo lists them, such as zoo:resnet50").into())
        }
        _ => Dataset::read_with(&local_files(files, console)?, wanted, reading),
    }
}

/// The part of a validation image that is shown where training images are cropped at random: 224 of 256 pixels, as in torchvision's presets.
const USUAL_CENTRE: f64 = 0.875;

fn datasets(
    c: &Train,
    zoo: Option<&ZooModel>,
    wanted: &[of_driver::training::ColumnSpec],
    reading: &DataOptions,
    console: &Console,
) -> Result<(Dataset, Option<Dataset>), Diagnostics> {
    let data = read(&c.data, zoo, wanted, reading, console)?;
    let changes = augmentation(c);
    if !changes.is_none() && !data.has_images() {
        let what = "--random-crop, --random-flip and --color-jitter change images of files, and the data has none";
        return Err(exit::usage(what).into());
    }
    let (data, validation) = match &c.validation[..] {
        [] => (data, None),
        [part] if part.to_string_lossy().parse::<f64>().is_ok() => {
            let part = part.to_string_lossy().parse().unwrap_or(0.0);
            let (train, held_out) = data.split(part)?;
            (train, Some(held_out))
        }
        files => {
            // A class has one number in both.
            let reading = DataOptions { classes: data.classes.clone(), ..reading.clone() };
            let held_out = read(files, zoo, wanted, &reading, console)?;
            (data, Some(held_out))
        }
    };
    if c.validation_crop.is_some() && !validation.as_ref().is_some_and(Dataset::has_images) {
        let what = "--validation-crop shows a part of the images of --validation, and there are none";
        return Err(exit::usage(what).into());
    }
    let centre = c.validation_crop.or(c.random_crop.map(|_| USUAL_CENTRE));
    let validation = match (validation, centre) {
        (Some(validation), Some(share)) => Some(validation.crop_to_centre(share)?),
        (validation, _) => validation,
    };
    let data = if changes.is_none() { data.decode_small()? } else { data };
    Ok((data, validation.map(Dataset::decode_small).transpose()?))
}

fn text_options(c: &Train) -> Option<TextOptions> {
    Some(TextOptions {
        tokenizer: c.tokenizer.clone()?,
        field: c.text_field.clone().unwrap_or_else(|| "text".into()),
        length: c.sequence_length?,
        samples: match c.text_samples {
            None | Some(TextSamplesArg::Blocks) => TextSamples::Blocks,
            Some(TextSamplesArg::Texts) => TextSamples::Texts,
        },
        end: c.end_token.clone(),
        padding: c.padding_token.clone(),
    })
}

pub(super) fn augmentation(c: &Train) -> Augmentation {
    Augmentation { crop: c.random_crop, flip: c.random_flip, colours: c.color_jitter }
}

fn describe(trainer: &Trainer, data: &Dataset, is_synthetic: bool, console: &Console) {
    let made = if is_synthetic { " of synthetic data" } else { "" };
    let elements = |role: ParameterRole| -> usize {
        trainer.parameters().iter().filter(|p| p.role == role).map(|p| p.elements).sum()
    };
    let more = |role: ParameterRole, what: &str| match elements(role) {
        0 => String::new(),
        n => format!(", {n} {what}"),
    };
    let classes = match &data.classes[..] {
        [] => String::new(),
        names => format!(" of {}", train_classes::listed(names)),
    };
    console.note(&format!(
        "{}{made}{classes}; {} parameters trained{}{}",
        count(data.len(), "sample"),
        elements(ParameterRole::Trained),
        more(ParameterRole::Frozen, "frozen"),
        more(ParameterRole::Statistic, "running statistics"),
    ));
    if let [scalars @ .., last] = trainer.scalars() {
        let (more, are) = if scalars.is_empty() {
            ("", "is a scalar and keeps its value")
        } else {
            (" and ", "are scalars and keep their values")
        };
        let what = "parameters have one axis at least, such as [1]";
        console.note(&format!("{}{more}{last} {are}: {what}", scalars.join(", ")));
    }
    let (zeros, all) = trainer.pruned();
    if all > 0 {
        console.note(&format!("{zeros} of {all} weights pruned"));
    }
}
