//! Mesh descriptions: the speed of the devices, and of the links along each axis.
//!
//! A device mesh is a grid of devices, as in GSPMD.

use std::collections::BTreeMap;
use std::path::Path;

use of_diag::{Code, Diagnostic, Location};
use of_ir::DType;
use serde::Deserialize;

/// The description of a mesh, as in its TOML file.
///
/// ```
/// let text = r#"
/// device = "cuda"
/// memory = 80e9                # bytes of a device
/// bandwidth = 3.35e12          # bytes per second between a device and its memory
/// flops = { f32 = 6.7e13, f16 = 9.9e14, other = 3.3e13 }
/// [[axis]]
/// devices = 4
/// bandwidth = 5e10             # bytes per second that a device sends along this axis
/// latency = 8e-6               # seconds until the first byte arrives
/// [[axis]]
/// devices = 8
/// bandwidth = 4.5e11
/// latency = 3e-6
/// "#;
/// let mesh = of_sharding::MeshSpec::parse(text, "four.toml").unwrap();
/// assert_eq!(mesh.shape(), [4, 8]);
/// ```
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshSpec {
    /// Kind of device, as in a mesh of the IR: `cpu`, `cuda`.
    pub device: String,
    /// Bytes of memory of a device.
    pub memory: f64,
    /// Bytes per second between a device and its memory.
    pub bandwidth: f64,
    /// Cache levels of a device, the fastest first. A level serves data reused within its capacity.
    #[serde(default, rename = "cache")]
    pub caches: Vec<CacheLevel>,
    /// Fixed seconds per task.
    #[serde(default)]
    pub overhead: f64,
    /// Devices that compute at the same time where they share the cores of one machine; all devices if absent.
    #[serde(default)]
    pub cores: Option<usize>,
    /// Floating-point operations per second by element type; `other` covers types that are not named.
    pub flops: BTreeMap<String, f64>,
    /// Elementwise operations per second; the rate of contractions if absent. An elementary function counts
    /// [`of_ops::work::ELEMENTARY`].
    #[serde(default)]
    pub pointwise: Option<f64>,
    /// The axes, outermost first.
    #[serde(rename = "axis")]
    pub axes: Vec<MeshAxis>,
}

/// One axis of a mesh.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshAxis {
    /// Number of devices along it.
    pub devices: usize,
    /// Bytes per second that a device sends, and at the same time receives, along it.
    pub bandwidth: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
    /// Bandwidth of messages that fit into a cache level, the smallest first.
    #[serde(default)]
    pub cache: Vec<CacheLevel>,
}

/// A cache level: a capacity and its bandwidth.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheLevel {
    /// Capacity in bytes.
    pub bytes: f64,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// A built-in mesh description, written `NAME[AxBx…]`.
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    make: fn(&[usize]) -> MeshSpec,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset { name: "cpu", summary: "cores of one machine that share its memory", make: cpu },
    Preset { name: "dgx-h100", summary: "NVIDIA H100, NVLink among up to 8, InfiniBand beyond", make: dgx_h100 },
    Preset { name: "ethernet", summary: "machines of 16 cores with 25 Gbit/s Ethernet", make: ethernet },
];

/// Most devices of a mesh: some algorithms enumerate devices.
const MAX_DEVICES: usize = 1 << 16;
/// Most axes of a mesh.
const MAX_AXES: usize = 4;

impl MeshSpec {
    /// The mesh that `text` names: `NAME[AxB]` for a preset, else the path of a file.
    ///
    /// # Errors
    /// When there is no such preset or file, or it does not describe a mesh.
    pub fn named(text: &str) -> Result<MeshSpec, Diagnostic> {
        if let Some((name, shape)) = text.strip_suffix(']').and_then(|t| t.split_once('[')) {
            let preset = PRESETS.iter().find(|p| p.name == name).ok_or_else(|| {
                let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
                error(format!("no mesh preset '{name}'")).hint(format!("the presets are {}", known.join(", ")))
            })?;
            let shape: Option<Vec<usize>> = shape.split('x').map(|d| d.trim().parse().ok()).collect();
            let shape = shape.ok_or_else(|| error(format!("'{text}' has no shape such as [4x8]")))?;
            return (preset.make)(&shape).checked(text);
        }
        let file = std::fs::read_to_string(Path::new(text)).map_err(|e| {
            error(format!("'{text}': {e}"))
                .hint("a mesh is NAME[AxB], e.g. dgx-h100[4x8], or a file that describes one")
        })?;
        MeshSpec::parse(&file, text)
    }

    /// Parses the text of the file `name`.
    ///
    /// # Errors
    /// When it does not describe a mesh.
    pub fn parse(text: &str, name: &str) -> Result<MeshSpec, Diagnostic> {
        let mesh: MeshSpec = toml::from_str(text).map_err(|e| error(format!("'{name}': {}", e.message())))?;
        mesh.checked(name)
    }

    fn checked(self, name: &str) -> Result<MeshSpec, Diagnostic> {
        let wrong = |what: String| Err(error(format!("mesh '{name}': {what}")));
        if self.axes.is_empty() || self.axes.len() > MAX_AXES {
            return wrong(format!("it has {} axes, but 1 to {MAX_AXES} are supported", self.axes.len()));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        for (i, a) in self.axes.iter().enumerate() {
            if a.devices == 0 || !positive(a.bandwidth) || !(a.latency.is_finite() && a.latency >= 0.0) {
                return wrong(format!("axis {i} needs devices, a positive bandwidth and a latency"));
            }
        }
        let devices = self.axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.devices));
        if devices.is_none_or(|n| n > MAX_DEVICES) {
            return wrong(format!("it has more than {MAX_DEVICES} devices"));
        }
        if !positive(self.memory) || !positive(self.bandwidth) || !self.flops.values().all(|f| positive(*f)) {
            return wrong("memory, bandwidth and flops must be positive".into());
        }
        if !(self.overhead.is_finite() && self.overhead >= 0.0) || self.cores == Some(0) {
            return wrong("overhead must not be negative, and cores must not be 0".into());
        }
        if self.pointwise.is_some_and(|rate| !positive(rate)) {
            return wrong("pointwise must be positive".into());
        }
        for levels in std::iter::once(&self.caches).chain(self.axes.iter().map(|a| &a.cache)) {
            let ascending = levels.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
            if !ascending || !levels.iter().all(|n| positive(n.bytes) && positive(n.bandwidth)) {
                return wrong("cache levels need positive bytes and bandwidths in ascending order of bytes".into());
            }
        }
        if !self.flops.contains_key("other") {
            return wrong("flops must have an entry 'other' for all other element types".into());
        }
        Ok(self)
    }

    /// Number of devices along each axis.
    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|a| a.devices).collect()
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.axes.iter().map(|a| a.devices).product()
    }

    /// Bytes that take as long to send as the first of them takes to arrive, along the axis where these are fewest. Transfers of fewer bytes
    /// gain from sharing a rendezvous, because most of their time is latency.
    pub fn latency_bytes(&self) -> f64 {
        self.axes.iter().map(|axis| axis.latency * axis.bandwidth).fold(f64::INFINITY, f64::min)
    }

    /// Floating-point operations per second for elements of this type.
    pub fn flops(&self, dtype: DType) -> f64 {
        let named = self.flops.get(&dtype.to_string()).or_else(|| self.flops.get("other"));
        named.copied().unwrap_or(f64::INFINITY)
    }

    /// The mesh as the IR has it.
    pub fn ir(&self) -> of_ir::Mesh {
        of_ir::Mesh { devices: self.device.clone(), shape: self.shape(), part: None }
    }
}

fn error(what: String) -> Diagnostic {
    Diagnostic::error(Code::INPUT, Location::Unknown, what)
}

fn flops(list: &[(&str, f64)]) -> BTreeMap<String, f64> {
    list.iter().map(|(k, v)| ((*k).to_string(), *v)).collect()
}

/// Cores of a Zen 4 server: 117 GFLOP/s in f32 each. One core reads what another wrote through their shared cache.
/// `of-opt measure` describes the local machine.
fn cpu(shape: &[usize]) -> MeshSpec {
    let axis = |d: &usize| MeshAxis { devices: *d, bandwidth: 8e9, latency: 1e-6, cache: Vec::new() };
    MeshSpec {
        device: "cpu".into(),
        memory: 8e9,
        bandwidth: 1e10,
        caches: vec![CacheLevel { bytes: 1e6, bandwidth: 7.5e10 }],
        overhead: 1.4e-7,
        cores: None,
        flops: flops(&[("f32", 1.17e11), ("f64", 5.8e10), ("other", 3e10)]),
        pointwise: Some(3e10),
        axes: shape.iter().map(axis).collect(),
    }
}

/// H100 SXM: dense tensor-core peaks of the data sheet; large products reach about two thirds of them. NVLink 4 gives
/// 450 GB/s each way, one 400 Gbit/s InfiniBand port per GPU 50 GB/s.
fn dgx_h100(shape: &[usize]) -> MeshSpec {
    const ACHIEVED: f64 = 0.65;
    let peaks = [("f16", 9.9e14), ("bf16", 9.9e14), ("f32", 4.9e14), ("f64", 6.7e13), ("other", 6e13)];
    let axis = |i: usize| {
        let inside = shape[i..].iter().product::<usize>() <= 8;
        let (bandwidth, latency) = if inside { (4.5e11, 3e-6) } else { (5e10, 8e-6) };
        MeshAxis { devices: shape[i], bandwidth, latency, cache: Vec::new() }
    };
    MeshSpec {
        device: "cuda".into(),
        memory: 80e9,
        bandwidth: 3.35e12,
        caches: Vec::new(),
        overhead: 0.0,
        cores: None,
        flops: flops(&peaks.map(|(n, f)| (n, f * ACHIEVED))),
        pointwise: None,
        axes: (0..shape.len()).map(axis).collect(),
    }
}

/// Machines of 16 cores with eight memory channels.
fn ethernet(shape: &[usize]) -> MeshSpec {
    let axis = |d: &usize| MeshAxis { devices: *d, bandwidth: 3.1e9, latency: 3e-5, cache: Vec::new() };
    MeshSpec {
        device: "cpu".into(),
        memory: 64e9,
        bandwidth: 2e11,
        caches: Vec::new(),
        overhead: 0.0,
        cores: None,
        flops: flops(&[("f32", 1.8e12), ("f64", 9e11), ("other", 5e11)]),
        pointwise: None,
        axes: shape.iter().map(axis).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_and_files_parse_and_reject_errors() {
        let m = MeshSpec::named("dgx-h100[4x8]").unwrap();
        assert_eq!((m.shape(), m.devices()), (vec![4, 8], 32));
        assert!(m.axes[0].bandwidth < m.axes[1].bandwidth);
        assert!(m.flops(DType::F16) > m.flops(DType::F32));
        for (text, what) in [
            ("tpu[4]", "no mesh preset 'tpu'"),
            ("cpu[a]", "no shape"),
            ("cpu[0]", "needs devices"),
            ("cpu[1x2x3x4x5]", "5 axes"),
            ("cpu[100000]", "more than"),
            ("/no/such/file", "/no/such/file"),
        ] {
            let e = MeshSpec::named(text).unwrap_err();
            assert!(e.message.contains(what), "{text}: {}", e.message);
        }
        assert!(MeshSpec::parse("device = 1", "x").unwrap_err().message.contains("'x'"));
        let text = |more: &str| {
            let axis = "[[axis]]\ndevices = 2\nbandwidth = 1e9\nlatency = 1e-6\n";
            format!("device = \"cpu\"\nmemory = 1e9\nbandwidth = 1e9\n{more}flops = {{ other = 1e9 }}\n{axis}")
        };
        let levels = "cache = [{ bytes = 1e6, bandwidth = 2e9 }]\n";
        let m = MeshSpec::parse(&text(&format!("cores = 1\noverhead = 1e-7\npointwise = 1e9\n{levels}")), "x").unwrap();
        assert_eq!((m.cores, m.overhead, m.pointwise), (Some(1), 1e-7, Some(1e9)));
        assert_eq!(m.caches, [CacheLevel { bytes: 1e6, bandwidth: 2e9 }]);
        let none = "cache = [{ bytes = 1e6, bandwidth = 0.0 }]\n";
        let backwards = "cache = [{ bytes = 2e6, bandwidth = 1e9 }, { bytes = 1e6, bandwidth = 2e9 }]\n";
        for wrong in ["cores = 0\n", "overhead = -1.0\n", "pointwise = 0.0\n", none, backwards] {
            assert!(MeshSpec::parse(&text(wrong), "x").is_err(), "{wrong}");
        }
    }
}
