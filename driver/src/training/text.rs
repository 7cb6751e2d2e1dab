//! Texts as tokens: text files, JSON lines, and columns of Parquet and Arrow files, read with a tokenizer of Hugging Face (`tokenizer.json`).

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use of_diag::{Code, Diagnostics};
use of_ir::{DType, Tensor};
use tokenizers::Tokenizer;

use super::columns;
use super::data::{ColumnSpec, Values};
use super::lazy::{LazyColumn, Source};
use crate::error::{error, io_error};

/// How texts become samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// The file of the tokenizer, `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// The field of JSON lines that has the text.
    pub field: String,
    /// Tokens of a sample.
    pub length: usize,
    /// What a sample is.
    pub samples: TextSamples,
    /// The token that is put behind each text of a block.
    pub end: Option<String>,
    /// The token that fills samples up; `None` is that of the tokenizer.
    pub padding: Option<String>,
}

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextSamples {
    /// A block of all texts one after the other, cut into equal lengths.
    Blocks,
    /// A text, cut off or filled up to the length.
    Texts,
}

/// The label of a token that does not count.
const NO_LABEL: i64 = -100;
/// Texts that are tokenized at once, by all threads.
const AT_ONCE: usize = 4096;

/// Whether the name is that of such a file.
pub(super) fn is_text(path: &Path) -> bool {
    ["txt", "jsonl", "ndjson"].iter().any(|end| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(end)))
}

/// What a column has for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Ids,
    /// The next token, or [`NO_LABEL`].
    Next,
    /// 1 where there is a token.
    Mask,
    /// 0.
    Segment,
}

/// The tokens of all samples.
#[derive(Debug)]
struct Tokens {
    /// One after the other.
    all: Vec<u32>,
    /// First and last token of each text, where samples are texts.
    texts: Vec<(usize, usize)>,
    length: usize,
    padding: u32,
}

impl Tokens {
    fn len(&self) -> usize {
        match self.texts.is_empty() {
            // The last token of a block has a label, too.
            true => self.all.len().saturating_sub(1) / self.length,
            false => self.texts.len(),
        }
    }

    /// The tokens of a sample, and the token behind them.
    fn sample(&self, i: usize) -> (&[u32], Option<u32>) {
        let (from, end) = match self.texts.get(i) {
            Some((from, end)) => (*from, *end),
            None => (i * self.length, self.all.len()),
        };
        let to = end.min(from + self.length);
        (&self.all[from..to], (to < end).then(|| self.all[to]))
    }
}

#[derive(Debug)]
struct TokenColumn {
    tokens: Arc<Tokens>,
    dims: [usize; 1],
    part: Part,
    dtype: DType,
}

impl Source for TokenColumn {
    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn gather(&self, samples: &[usize], out: &mut Vec<u8>) -> Result<(), Diagnostics> {
        for sample in samples {
            let (own, next) = self.tokens.sample(*sample);
            for i in 0..self.tokens.length {
                let token = own.get(i).copied();
                let value = match self.part {
                    Part::Ids => i64::from(token.unwrap_or(self.tokens.padding)),
                    Part::Next if token.is_none() => NO_LABEL,
                    Part::Next => own.get(i + 1).copied().or(next).map_or(NO_LABEL, i64::from),
                    Part::Mask => i64::from(token.is_some()),
                    Part::Segment => 0,
                };
                match self.dtype {
                    DType::I32 => out.extend_from_slice(&(value as i32).to_le_bytes()),
                    _ => out.extend_from_slice(&value.to_le_bytes()),
                }
            }
        }
        Ok(())
    }
}

/// A text and, where the model has one label for it, its label.
struct Text {
    text: String,
    label: Option<i64>,
}

/// Reads the texts of a file: a text file is one text, or one for each line where samples are texts; JSON lines have one each.
fn texts(path: &Path, options: &TextOptions, label: Option<&str>) -> Result<Vec<Text>, Diagnostics> {
    if columns::is_columns(path) {
        let all = columns::texts(path, &options.field, label)?;
        return Ok(all.into_iter().map(|(text, label)| Text { text, label }).collect());
    }
    let failed = |e: std::io::Error| Diagnostics::from(io_error(path, "read", &e));
    let file = BufReader::new(std::fs::File::open(path).map_err(failed)?);
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("txt")) {
        if label.is_some() {
            let what = format!("'{}' has no labels of its texts", path.display());
            return Err(error(Code::INPUT, what).hint("give JSON lines with a text and a label each").into());
        }
        if options.samples == TextSamples::Blocks {
            let text = std::fs::read_to_string(path).map_err(failed)?;
            return Ok(vec![Text { text, label: None }]);
        }
        let lines = file.lines().map(|line| Ok(Text { text: line.map_err(failed)?, label: None }));
        let all: Result<Vec<Text>, Diagnostics> = lines.collect();
        return Ok(all?.into_iter().filter(|text| !text.text.trim().is_empty()).collect());
    }
    let mut out = Vec::new();
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong =
            |what: String| Diagnostics::from(error(Code::INPUT, format!("{}:{}: {what}", path.display(), number + 1)));
        let value: serde_json::Value = serde_json::from_str(&line).map_err(|e| wrong(format!("no JSON: {e}")))?;
        let text = value.get(&options.field).and_then(serde_json::Value::as_str);
        let text = text.ok_or_else(|| wrong(format!("no text in the field '{}'", options.field)))?.to_owned();
        let label = match label {
            None => None,
            Some(name) => {
                let number = value.get(name).and_then(serde_json::Value::as_i64);
                Some(number.ok_or_else(|| wrong(format!("no whole number in the field '{name}', the label")))?)
            }
        };
        out.push(Text { text, label });
    }
    Ok(out)
}

/// The id of a token of the vocabulary.
fn id(tokenizer: &Tokenizer, token: &str) -> Result<u32, Diagnostics> {
    tokenizer
        .token_to_id(token)
        .ok_or_else(|| error(Code::INPUT, format!("the tokenizer has no token '{token}'")).into())
}

/// What each input is made of, and whether labels are one for each text.
fn parts(wanted: &[ColumnSpec]) -> Result<(Vec<(usize, Part)>, bool), Diagnostics> {
    let Some((labels, inputs)) = wanted.split_last() else {
        return Err(error(Code::INPUT, "texts are for models with inputs and labels").into());
    };
    let mut out = Vec::new();
    for (i, spec) in inputs.iter().enumerate() {
        let part = match spec.name.as_str() {
            "attention_mask" => Part::Mask,
            "token_type_ids" => Part::Segment,
            _ => Part::Ids,
        };
        if part == Part::Ids && out.iter().any(|(_, part)| *part == Part::Ids) {
            let what = format!("texts are for one input of tokens, and '{}' is another", spec.name);
            let hint = "other inputs than tokens may be called attention_mask and token_type_ids";
            return Err(error(Code::INPUT, what).hint(hint).into());
        }
        out.push((i, part));
    }
    let rank = |spec: &ColumnSpec| spec.ty.as_tensor().and_then(of_ir::TensorType::rank);
    let is_of_text = rank(labels) == Some(1);
    if !is_of_text {
        out.push((inputs.len(), Part::Next));
    }
    for (i, _) in &out {
        let spec = &wanted[*i];
        let dtype = spec.ty.as_tensor().map(|t| t.dtype);
        if rank(spec) != Some(2) || !matches!(dtype, Some(DType::I32 | DType::I64)) {
            let what = format!("'{}' is {}, and tokens are [samples, length] of i64 or i32", spec.name, spec.ty);
            return Err(error(Code::INPUT, what).into());
        }
    }
    Ok((out, is_of_text))
}

/// Reads the columns `wanted` from files of texts, of which the last are the labels: the next tokens, or one number for each text from the
/// field of that name. Tokens are in memory, four bytes each.
///
/// # Errors
/// When a file cannot be read, a line has no text, or texts are not what the model takes.
pub(super) fn read(
    files: &[PathBuf],
    wanted: &[ColumnSpec],
    options: &TextOptions,
) -> Result<Vec<(String, Values)>, Diagnostics> {
    let (parts, is_of_text) = parts(wanted)?;
    let label = wanted.last().filter(|_| is_of_text).map(|spec| spec.name.as_str());
    if is_of_text && options.samples == TextSamples::Blocks {
        let what = "the model has one label for each text, and samples are blocks of texts";
        return Err(error(Code::INPUT, what).hint("give --text-samples texts").into());
    }
    let mut tokenizer = Tokenizer::from_file(&options.tokenizer).map_err(|e| {
        error(Code::INPUT, format!("'{}' is no tokenizer: {e}", options.tokenizer.display()))
            .hint("a tokenizer.json of Hugging Face is needed")
    })?;
    let own_padding = tokenizer.get_padding().map(|padding| padding.pad_id);
    // Filling up and cutting off are done below, so that blocks have all tokens.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| error(Code::INPUT, e.to_string()))?;
    let end = options.end.as_deref().map(|token| id(&tokenizer, token)).transpose()?;
    let (mut all, mut ends, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let is_text = options.samples == TextSamples::Texts;
    let mut needs_padding = false;
    for path in files {
        for batch in texts(path, options, label)?.chunks(AT_ONCE) {
            let list: Vec<&str> = batch.iter().map(|text| text.text.as_str()).collect();
            // Special tokens mark the ends of a sample.
            let encoded = tokenizer
                .encode_batch_fast(list, is_text)
                .map_err(|e| error(Code::INPUT, format!("'{}' cannot be tokenized: {e}", path.display())))?;
            for (encoding, text) in encoded.iter().zip(batch) {
                let (from, own) = (all.len(), encoding.get_ids());
                all.extend_from_slice(own);
                all.extend(end);
                if is_text {
                    needs_padding |= all.len() - from < options.length;
                    ends.push((from, all.len()));
                }
                labels.extend(text.label);
            }
        }
    }
    let padding = match &options.padding {
        Some(token) => id(&tokenizer, token)?,
        None => match own_padding {
            Some(padding) => padding,
            None if needs_padding => {
                let what =
                    format!("a text has fewer than {} tokens, and the tokenizer fills nothing up", options.length);
                return Err(error(Code::INPUT, what).hint("give --padding-token").into());
            }
            None => 0,
        },
    };
    let tokens = Arc::new(Tokens { all, texts: ends, length: options.length, padding });
    if tokens.len() == 0 {
        let what = format!("the texts have {} tokens, fewer than a sample of {}", tokens.all.len(), options.length);
        return Err(error(Code::INPUT, what).hint("give a smaller --sequence-length").into());
    }
    let mut out = Vec::new();
    for (i, part) in parts {
        let dtype = wanted[i].ty.as_tensor().map_or(DType::I64, |t| t.dtype);
        let column = TokenColumn { tokens: Arc::clone(&tokens), dims: [options.length], part, dtype };
        out.push((wanted[i].name.clone(), Values::Lazy(LazyColumn::new(column))));
    }
    if let Some(name) = label {
        let values = Tensor::from_slice(&[labels.len()], &labels).map_err(|e| error(Code::INPUT, e.to_string()))?;
        out.push((name.to_owned(), Values::Numbers(values)));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use of_ir::{Dim, Type};

    use super::super::data::{DataOptions, Dataset};
    use super::super::order::sample_order;
    use super::*;

    /// A tokenizer of words and spaces.
    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "end": 6, "fill": 7}}}"#;

    fn column(name: &str, dtype: DType, rank: usize) -> ColumnSpec {
        let shape = ["n", "t"].into_iter().take(rank).map(Dim::symbol).collect();
        ColumnSpec { name: name.into(), ty: Type::tensor(dtype, shape) }
    }

    fn read(
        dir: &Path,
        files: &[(&str, &str)],
        wanted: &[ColumnSpec],
        change: impl Fn(&mut TextOptions),
    ) -> Result<Dataset, String> {
        std::fs::write(dir.join("tokenizer.json"), TOKENIZER).unwrap();
        let mut text = TextOptions {
            tokenizer: dir.join("tokenizer.json"),
            field: "text".into(),
            length: 3,
            samples: TextSamples::Blocks,
            end: None,
            padding: None,
        };
        change(&mut text);
        let write = |(name, text): &(&str, &str)| {
            std::fs::write(dir.join(name), text).unwrap();
            OsString::from(dir.join(name))
        };
        let files: Vec<OsString> = files.iter().map(write).collect();
        let options = DataOptions { text: Some(text), ..DataOptions::default() };
        Dataset::read_with(&files, wanted, &options).map_err(|d| d.to_string())
    }

    fn ints(data: &Dataset, column: usize, samples: &[usize]) -> Vec<i64> {
        data.batch(samples).unwrap()[column].as_tensor().unwrap().to_elements::<i64>().unwrap()
    }

    #[test]
    fn blocks_are_all_tokens_in_order_and_labels_are_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = [column("ids", DType::I64, 2), column("labels", DType::I64, 2)];
        let files = [("a.txt", "a b c d\ne a"), ("b.jsonl", "{\"text\": \"b x\"}\n\n{\"text\": \"c\", \"more\": 1}\n")];
        let data = read(dir.path(), &files, &wanted, |o| o.end = Some("end".into())).unwrap();
        // a b c, d e a, end b ?, end c end: the last one has no token behind it.
        assert_eq!((data.len(), ints(&data, 0, &[0, 1, 2])), (3, vec![1, 2, 3, 4, 5, 1, 6, 2, 0]));
        assert_eq!(ints(&data, 1, &[0, 1, 2]), [2, 3, 4, 5, 1, 6, 2, 0, 6]);
        // Any order gives the samples of their numbers, and so do parts of the data.
        let order = sample_order(3, 5, 1);
        assert_eq!(ints(&data, 0, &order), order.iter().flat_map(|i| ints(&data, 0, &[*i])).collect::<Vec<_>>());
        let (train, held) = data.split(0.4).unwrap();
        assert_eq!((train.len(), held.len(), ints(&held, 0, &[0])), (2, 1, vec![6, 2, 0]));
    }

    #[test]
    fn texts_are_cut_off_and_filled_up() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = [
            column("input_ids", DType::I64, 2),
            column("attention_mask", DType::I64, 2),
            column("token_type_ids", DType::I64, 2),
            column("labels", DType::I64, 2),
        ];
        let change = |o: &mut TextOptions| {
            (o.samples, o.padding) = (TextSamples::Texts, Some("fill".into()));
        };
        let data = read(dir.path(), &[("a.txt", "a\n\nb c d e\nc d e\n")], &wanted, change).unwrap();
        let all = [0, 1, 2];
        assert_eq!(ints(&data, 0, &all), [1, 7, 7, 2, 3, 4, 3, 4, 5]);
        assert_eq!(ints(&data, 1, &all), [1, 0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(ints(&data, 2, &all), [0; 9]);
        assert_eq!(ints(&data, 3, &all), [-100, -100, -100, 3, 4, 5, 4, 5, -100]);
        // One label for each text is a field.
        let wanted = [column("ids", DType::I64, 2), column("class", DType::I64, 1)];
        let lines = "{\"text\": \"a b c d\", \"class\": 4}\n{\"text\": \"e\", \"class\": 2}\n";
        let data = read(dir.path(), &[("a.jsonl", lines)], &wanted, change).unwrap();
        assert_eq!((ints(&data, 0, &[1, 0]), ints(&data, 1, &[1, 0])), (vec![5, 7, 7, 1, 2, 3], vec![2, 4]));
    }

    #[test]
    fn unfit_texts_are_refused_with_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = || column("ids", DType::I64, 2);
        let labels = || column("labels", DType::I64, 2);
        let class = || column("class", DType::I64, 1);
        type Change = fn(&mut TextOptions);
        let nothing: Change = |_| {};
        let texts: Change = |o| o.samples = TextSamples::Texts;
        for (file, text, wanted, change, words) in [
            ("a.txt", "a b", vec![tokens(), labels()], nothing, "the texts have 2 tokens, fewer than a sample of 3"),
            ("a.jsonl", "{}", vec![tokens(), labels()], nothing, "a.jsonl:1: no text in the field 'text'"),
            ("a.jsonl", "\nx", vec![tokens(), labels()], nothing, "a.jsonl:2: no JSON"),
            ("a.txt", "a b c d", vec![tokens(), class()], nothing, "one label for each text"),
            ("a.txt", "a b c d", vec![tokens(), class()], texts, "has no labels of its texts"),
            ("a.jsonl", "{\"text\": \"a\"}", vec![tokens(), class()], texts, "no whole number in the field 'class'"),
            ("a.txt", "a", vec![tokens(), labels()], texts, "the tokenizer fills nothing up"),
            ("a.txt", "a", vec![tokens(), labels()], |o| o.end = Some("z".into()), "has no token 'z'"),
            ("a.txt", "a", vec![tokens(), labels()], |o| o.tokenizer.push("x"), "is no tokenizer"),
            ("a.txt", "a", vec![tokens(), column("more", DType::I64, 2), labels()], nothing, "'more' is another"),
            ("a.txt", "a", vec![column("x", DType::F32, 2), labels()], nothing, "tokens are [samples, length]"),
        ] {
            let wrong = read(dir.path(), &[(file, text)], &wanted, change).unwrap_err();
            assert!(wrong.contains(words), "{words}: {wrong}");
        }
        let wanted = [tokens(), labels()];
        let path = OsString::from(dir.path().join("a.txt"));
        let wrong = Dataset::read_with(&[path], &wanted, &DataOptions::default()).unwrap_err().to_string();
        assert!(wrong.contains("there is no tokenizer"), "{wrong}");
    }
}
