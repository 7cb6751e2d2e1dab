//! Images of a data set that stay encoded, in their files, until a batch needs them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use of_diag::{Code, Diagnostics};
use of_ir::DType;
use rayon::prelude::*;

use super::augmentation::Draw;
use super::data::{ColumnSpec, one_sample};
use super::encoded_rows::EncodedSource;
use super::lazy::Groups;
use crate::error::{error, io_error};
use crate::images::{ImageInput, ImageMemory, ImageOptions, View};

/// Where an encoded image is.
#[derive(Clone, Debug)]
pub enum EncodedImage {
    /// A file.
    File(PathBuf),
    /// A part of an archive.
    Member {
        /// Its name in the archive.
        name: String,
        archive: Arc<Path>,
        offset: u64,
        bytes: u64,
    },
    /// Bytes of an archive that is compressed as a whole.
    Held {
        /// Its name in the archive, and that of the archive.
        place: String,
        bytes: Bytes,
    },
    /// A row of a table, or a record.
    Row { source: Arc<dyn EncodedSource>, row: u32 },
}

impl EncodedImage {
    fn place(&self) -> String {
        match self {
            EncodedImage::File(path) => format!("'{}'", path.display()),
            EncodedImage::Member { name, archive, .. } => format!("'{name}' in '{}'", archive.display()),
            EncodedImage::Held { place, .. } => place.clone(),
            EncodedImage::Row { source, row } => source.place(*row as usize),
        }
    }

    fn read(&self) -> Result<Bytes, Diagnostics> {
        let failed = |path: &Path, e: &std::io::Error| Diagnostics::from(io_error(path, "read", e));
        match self {
            EncodedImage::File(path) => Ok(std::fs::read(path).map_err(|e| failed(path, &e))?.into()),
            EncodedImage::Member { archive, offset, bytes, .. } => {
                let file = File::open(archive).map_err(|e| failed(archive, &e))?;
                let mut out = vec![0; *bytes as usize];
                file.read_exact_at(&mut out, *offset).map_err(|e| failed(archive, &e))?;
                Ok(out.into())
            }
            EncodedImage::Held { bytes, .. } => Ok(bytes.clone()),
            EncodedImage::Row { source, row } => {
                Ok(source.fetch(&[*row as usize])?.into_iter().next().unwrap_or_default())
            }
        }
    }
}

/// Whether an input takes images.
pub(super) fn takes_images(spec: &ColumnSpec) -> bool {
    ImageInput::new(Some(&one_sample(&spec.ty)), &spec.name, &ImageOptions::default(), "").is_ok()
}

/// Whether bytes begin as those of an encoded image do.
pub(super) fn is_encoded(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 8] =
        [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ", b"P5\n", b"P6\n"];
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    is_webp || BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// The images of a column of a data set.
#[derive(Clone, Debug)]
pub struct EncodedImages {
    input: ImageInput,
    /// Extents of a sample.
    dims: Vec<usize>,
    images: Vec<EncodedImage>,
    /// The share of the sides of the largest centred part that is shown; `None` shows whole images.
    centre: Option<f64>,
}

/// Bytes of decoded images that a data set keeps in memory at most.
const MAX_DECODED_BYTES: usize = 256 << 20;

impl EncodedImages {
    /// Images for the input `spec`. The first one is decoded: all must have its size where the input leaves it open. `None` without
    /// any.
    ///
    /// # Errors
    /// When the input takes no images, or the first one is none.
    pub fn new(
        spec: &ColumnSpec,
        options: &ImageOptions,
        images: Vec<EncodedImage>,
    ) -> Result<Option<EncodedImages>, Diagnostics> {
        let Some(first) = images.first() else { return Ok(None) };
        let input = ImageInput::new(Some(&one_sample(&spec.ty)), &spec.name, options, &first.place())?;
        let dims = input.show(&first.read()?, &|_, _| View::default(), &first.place(), &mut ImageMemory::default())?;
        Ok(Some(EncodedImages { input, dims: dims[1..].to_vec(), images, centre: None }))
    }

    /// As [`EncodedImages::new`], of the first `count` images of a source.
    ///
    /// # Errors
    /// As [`EncodedImages::new`].
    pub(super) fn of_source(
        spec: &ColumnSpec,
        options: &ImageOptions,
        source: impl EncodedSource + 'static,
        count: usize,
    ) -> Result<Option<EncodedImages>, Diagnostics> {
        let source: Arc<dyn EncodedSource> = Arc::new(source);
        let row = |row| EncodedImage::Row { source: Arc::clone(&source), row };
        EncodedImages::new(spec, options, (0..count as u32).map(row).collect())
    }

    /// The parts of files that are read at once, where not all stay in memory.
    pub(super) fn groups(&self) -> Option<Groups> {
        let mut sources: Vec<&Arc<dyn EncodedSource>> = Vec::new();
        let mut by_group = BTreeMap::<_, Vec<usize>>::new();
        for (sample, image) in self.images.iter().enumerate() {
            let EncodedImage::Row { source, row } = image else { return None };
            // Samples of one source mostly follow one another. Numbers of sources, unlike their addresses, are the same in every run.
            let known = sources.iter().rposition(|known| Arc::ptr_eq(known, source));
            let number = known.unwrap_or_else(|| {
                sources.push(source);
                sources.len() - 1
            });
            by_group.entry((number, source.group(*row as usize))).or_default().push(sample);
        }
        let at_once = sources.iter().filter_map(|source| source.groups_at_once()).min()?;
        Some(Groups { samples: by_group.into_values().collect(), at_once })
    }

    /// The bytes of images that are in rows, of these samples: each source is asked once.
    fn rows(&self, samples: &[usize]) -> Result<Vec<Option<Bytes>>, Diagnostics> {
        type Rows<'s> = (&'s Arc<dyn EncodedSource>, Vec<usize>, Vec<usize>);
        let mut wanted: Vec<Rows<'_>> = Vec::new();
        for (i, sample) in samples.iter().enumerate() {
            let Some(EncodedImage::Row { source, row }) = self.images.get(*sample) else { continue };
            match wanted.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, source)) {
                Some((_, places, rows)) => {
                    places.push(i);
                    rows.push(*row as usize);
                }
                None => wanted.push((source, vec![i], vec![*row as usize])),
            }
        }
        let mut out = vec![None; samples.len()];
        for (source, places, rows) in wanted {
            for (place, bytes) in places.into_iter().zip(source.fetch(&rows)?) {
                out[place] = Some(bytes);
            }
        }
        Ok(out)
    }

    /// Bytes that the images in rows take in their files.
    pub(super) fn encoded_bytes(&self) -> usize {
        let bytes = |image: &EncodedImage| match image {
            EncodedImage::Row { source, row } => source.bytes_of(*row as usize),
            _ => 0,
        };
        self.images.iter().map(bytes).fold(0, usize::saturating_add)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Extents of a sample.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The element type of samples.
    pub fn dtype(&self) -> DType {
        self.input.dtype()
    }

    /// Shows the centre of each image, where no change at random shows another part: a part of this share of the sides of the largest one that
    /// has the shape of the input.
    ///
    /// # Errors
    /// When the share is not between 0 and 1.
    pub fn crop_to_centre(&mut self, share: f64) -> Result<(), Diagnostics> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(error(Code::INPUT, format!("a part of {share} of an image is not between 0 and 1")).into());
        }
        self.centre = Some(share);
        Ok(())
    }

    /// What is shown of an image of this size without changes at random.
    fn still_view(&self, width: usize, height: usize) -> View {
        // Channels come first or last, as `ImageInput` has them.
        let shape = match self.dims[..] {
            [1 | 3, height, width] | [height, width, _] => (width, height),
            _ => (width, height),
        };
        View { crop: self.centre.map(|share| centre(share, (width, height), shape)), ..View::default() }
    }

    /// Adds the images of another column of the same input.
    ///
    /// # Errors
    /// When their size differs.
    pub fn extend(&mut self, other: EncodedImages) -> Result<(), Diagnostics> {
        if self.dims != other.dims {
            let what =
                format!("{} is {:?}, and the samples before are {:?}", other.images[0].place(), other.dims, self.dims);
            return Err(error(Code::INPUT, what).into());
        }
        self.images.extend(other.images);
        Ok(())
    }

    /// The images of these numbers.
    pub fn select(&self, samples: &[usize]) -> EncodedImages {
        EncodedImages { images: samples.iter().map(|i| self.images[*i].clone()).collect(), ..self.clone() }
    }

    /// Bytes of a sample.
    pub fn sample_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype().bits().unwrap_or(8) / 8
    }

    /// Whether all together are small enough to be kept in memory decoded.
    pub fn fit_memory(&self) -> bool {
        self.sample_bytes() * self.len() <= MAX_DECODED_BYTES
    }

    /// Writes the images of these numbers, each to its place of as many bytes as it has, decoded by all threads. `draw` changes them at random.
    ///
    /// # Errors
    /// When a file cannot be read, is no image, or is one of another size.
    pub fn decode(&self, samples: &[usize], draw: Option<&Draw>, places: Vec<&mut [u8]>) -> Result<(), Diagnostics> {
        let rows = self.rows(samples)?;
        let one = |((sample, row), to): ((&usize, Option<Bytes>), &mut [u8])| {
            let image = self.images.get(*sample);
            let image =
                image.ok_or_else(|| Diagnostics::from(error(Code::INPUT, format!("there is no image {sample}"))))?;
            let still = |width, height| self.still_view(width, height);
            let view =
                |width, height| draw.map_or_else(|| still(width, height), |draw| draw.view(*sample, width, height));
            let file = row.map_or_else(|| image.read(), Ok)?;
            MEMORY.with_borrow_mut(|memory| {
                let dims = self.input.show(&file, &view, &image.place(), memory)?;
                self.check_size(&dims[1..], image)?;
                self.input.fill(memory, to);
                Ok::<_, Diagnostics>(())
            })
        };
        samples.par_iter().zip(rows).zip(places).try_for_each(one)
    }

    fn check_size(&self, own: &[usize], image: &EncodedImage) -> Result<(), Diagnostics> {
        if own == self.dims {
            return Ok(());
        }
        let (place, dims, dtype) = (image.place(), &self.dims, self.dtype());
        let what = format!("{place} is {dtype} {own:?}, and the samples before are {dims:?}");
        Err(error(Code::INPUT, what).into())
    }
}

/// The centred part of an image, of this share of the sides of the largest one that has the shape of `to`: left, top, width, height.
/// torchvision's presets for ImageNet show 224 of 256 pixels.
fn centre(share: f64, (width, height): (usize, usize), to: (usize, usize)) -> [f64; 4] {
    let (width, height, sides) = (width as f64, height as f64, to.0 as f64 / (to.1 as f64).max(1.0));
    let (w, h) = (share * width.min(height * sides), share * height.min(width / sides));
    [(width - w) / 2.0, (height - h) / 2.0, w, h]
}

thread_local! {
    /// What this thread decodes into, batch after batch.
    static MEMORY: RefCell<ImageMemory> = RefCell::default();
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use of_ir::{Dim, Type};

    use super::super::augmentation::Augmentation;
    use super::super::batch_rows::BatchRows;
    use super::super::batches::Batches;
    use super::super::data::Dataset;
    use super::*;

    /// Two classes of three images of 4x4 pixels, each of one grey but for its first column.
    fn folders(dir: &Path) -> Dataset {
        for (class, name) in ["a", "b"].into_iter().enumerate() {
            std::fs::create_dir(dir.join(name)).unwrap();
            for i in 0..3u8 {
                let grey = 10 * (3 * class as u8 + i);
                let row = [[grey + 100; 3], [grey; 3], [grey; 3], [grey; 3]].concat();
                let bytes = [&b"P6\n4 4\n255\n"[..], &row.repeat(4)].concat();
                std::fs::write(dir.join(name).join(format!("{i}.ppm")), bytes).unwrap();
            }
        }
        read(dir).unwrap()
    }

    fn read(dir: &Path) -> Result<Dataset, Diagnostics> {
        let n = || Dim::symbol("n");
        let image = [n(), Dim::from(4i64), Dim::from(4i64), Dim::from(3i64)].to_vec();
        let wanted = [
            ColumnSpec { name: "x".into(), ty: Type::tensor(DType::U8, image) },
            ColumnSpec { name: "y".into(), ty: Type::tensor(DType::I64, vec![n()]) },
        ];
        Dataset::read(&[OsString::from(dir)], &wanted, &ImageOptions::default())
    }

    fn pixels(batch: &[of_runtime::Value]) -> Vec<u8> {
        batch[0].as_tensor().unwrap().to_elements::<u8>().unwrap()
    }

    #[test]
    fn batches_have_the_images_of_their_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(folders(dir.path()));
        assert!(data.has_images() && data.classes == ["a", "b"]);
        let order = [5, 0, 3, 2, 1, 4];
        let batches: Vec<_> =
            Batches::new(&data, &order, 2, None, BatchRows::all()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(batches.len(), 3);
        for (batch, samples) in batches.iter().zip(order.chunks(2)) {
            let greys: Vec<u8> = pixels(batch).chunks(48).map(|image| image[47]).collect();
            assert_eq!(greys, samples.iter().map(|i| 10 * *i as u8).collect::<Vec<_>>());
            let classes = batch[1].as_tensor().unwrap().to_elements::<i64>().unwrap();
            assert_eq!(classes, samples.iter().map(|i| *i as i64 / 3).collect::<Vec<_>>());
        }
        // What is left out of a last batch that is not full is not read, and an early end stops the thread.
        assert_eq!(Batches::new(&data, &order[..5], 2, None, BatchRows::all()).unwrap().count(), 2);
        drop(Batches::new(&data, &order, 1, None, BatchRows::all()).unwrap());
        let (train, held) = data.split(0.5).unwrap();
        assert_eq!((train.len(), held.len(), held.has_images()), (3, 3, true));
        let small = read(dir.path()).unwrap().decode_small().unwrap();
        assert!(!small.has_images());
        assert_eq!(pixels(&small.batch(&order).unwrap()), pixels(&data.batch(&order).unwrap()));
    }

    #[test]
    fn random_changes_are_those_of_the_sample_in_any_batch() {
        let dir = tempfile::tempdir().unwrap();
        let data = folders(dir.path());
        let augmentation = Augmentation { flip: true, ..Augmentation::default() };
        let draw = |epoch| Draw { augmentation, mixup: None, seed: 3, epoch };
        let whole = pixels(&data.batch_with(&[0, 1, 2, 3, 4, 5], Some(&draw(1))).unwrap());
        for i in 0..6 {
            let own = pixels(&data.batch_with(&[i], Some(&draw(1))).unwrap());
            assert_eq!(own, whole[i * 48..(i + 1) * 48]);
            // Either the first column or the last one is brighter.
            let (first, last) = (own[0], own[11]);
            assert_eq!(first.abs_diff(last), 100);
        }
        let epochs: Vec<Vec<u8>> =
            (0..8).map(|epoch| pixels(&data.batch_with(&[0], Some(&draw(epoch))).unwrap())).collect();
        assert!(epochs.iter().any(|e| e[0] == 100) && epochs.iter().any(|e| e[0] == 0));
    }

    #[test]
    fn centre_has_the_shape_of_the_input() {
        assert_eq!(centre(0.5, (400, 300), (10, 10)), [125.0, 75.0, 150.0, 150.0]);
        assert_eq!(centre(1.0, (400, 300), (20, 10)), [0.0, 50.0, 400.0, 200.0]);
        let dir = tempfile::tempdir().unwrap();
        let cropped = folders(dir.path()).crop_to_centre(0.5).unwrap();
        // The first column, which is 100 brighter, is next to the centre: interpolation takes a quarter of it.
        let shown = pixels(&cropped.batch(&[2]).unwrap());
        assert!((40..50).contains(&shown[0]) && shown[9] == 20, "{shown:?}");
        let (_, held) = cropped.split(0.5).unwrap();
        let shown = pixels(&held.decode_small().unwrap().batch(&[0]).unwrap());
        assert!((30..40).contains(&shown[0]) && shown[9] == 10, "{shown:?}");
        assert!(folders(tempfile::tempdir().unwrap().path()).crop_to_centre(1.5).is_err());
    }

    #[test]
    fn damaged_and_lost_files_are_named_when_they_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(folders(dir.path()));
        std::fs::write(dir.path().join("a/1.ppm"), b"P6\n4 4\n255\nshort").unwrap();
        std::fs::remove_file(dir.path().join("b/0.ppm")).unwrap();
        assert!(data.batch(&[0, 2, 4]).is_ok());
        for (sample, name) in [(1, "a/1.ppm"), (3, "b/0.ppm")] {
            let e = data.batch(&[0, sample]).unwrap_err().to_string();
            assert!(e.contains(name), "{e}");
        }
        let mut batches = Batches::new(&data, &[0, 1, 2], 1, None, BatchRows::all()).unwrap();
        assert!(batches.next().unwrap().is_ok() && batches.next().unwrap().is_err() && batches.next().is_none());
    }
}
