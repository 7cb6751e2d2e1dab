//! Meshes: what their devices can do, and how they are linked along each axis.

use std::collections::BTreeMap;
use std::path::Path;

use of_diag::{Code, Diagnostic, Location};
use of_ir::DType;
use serde::Deserialize;

/// A mesh as its file describes it.
///
/// ```
/// let text = r#"
/// device = "cuda"
/// memory = 80e9                # bytes of a device
/// bandwidth = 3.35e12          # bytes a second between a device and its memory
/// flops = { f32 = 6.7e13, f16 = 9.9e14, other = 3.3e13 }
/// [[axis]]
/// devices = 4
/// bandwidth = 5e10             # bytes a second that a device sends along this axis
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
    /// Kind of device, as a mesh of the IR names it: `cpu`, `cuda`.
    pub device: String,
    /// Bytes of memory of a device.
    pub memory: f64,
    /// Bytes a second between a device and its memory.
    pub bandwidth: f64,
    /// What is nearer to a device than its memory, the nearest first: what it touched again after so many bytes.
    #[serde(default, rename = "cache")]
    pub caches: Vec<Near>,
    /// Seconds that a task takes besides its work.
    #[serde(default)]
    pub overhead: f64,
    /// Devices that compute at one time, where they share the cores of a machine; all without it.
    #[serde(default)]
    pub cores: Option<usize>,
    /// Floating-point operations a second by name of the element type; `other` stands for all that are not named.
    pub flops: BTreeMap<String, f64>,
    /// Operations a second on elements one by one, where they are no products; as many as of these without it. An elementary
    /// function counts [`of_ops::work::ELEMENTARY`].
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
    /// Bytes a second that a device sends, and at the same time receives, along it.
    pub bandwidth: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
    /// The bandwidth of messages that stay in a cache, the shortest first.
    #[serde(default)]
    pub short: Vec<Near>,
}

/// Bytes that come faster than others.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// Up to so many.
    pub bytes: f64,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// A mesh that is known by name: spelled `NAME[AxBx…]`.
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    make: fn(&[usize]) -> MeshSpec,
}

/// All of them.
pub const PRESETS: &[Preset] = &[
    Preset { name: "cpu", summary: "cores of one machine that share its memory", make: cpu },
    Preset { name: "dgx-h100", summary: "NVIDIA H100, NVLink among up to 8, InfiniBand beyond", make: dgx_h100 },
    Preset { name: "ethernet", summary: "machines of 16 cores with 25 Gbit/s Ethernet", make: ethernet },
];

/// No mesh has more devices: the number of placements of one tensor is searched, and devices are counted one by one.
const MOST_DEVICES: usize = 1 << 16;
/// No mesh has more axes.
const MOST_AXES: usize = 4;

impl MeshSpec {
    /// The mesh that `text` names: `NAME[AxB]` for a preset, else the path of a file.
    ///
    /// # Errors
    /// When there is no such preset or file, or it describes no mesh.
    pub fn named(text: &str) -> Result<MeshSpec, Diagnostic> {
        if let Some((name, shape)) = text.strip_suffix(']').and_then(|t| t.split_once('[')) {
            let preset = PRESETS.iter().find(|p| p.name == name).ok_or_else(|| {
                let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
                error(format!("there is no mesh '{name}'")).hint(format!("known are {}", known.join(", ")))
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

    /// Reads the text of a file called `name`.
    ///
    /// # Errors
    /// When it describes no mesh.
    pub fn parse(text: &str, name: &str) -> Result<MeshSpec, Diagnostic> {
        let mesh: MeshSpec = toml::from_str(text).map_err(|e| error(format!("'{name}': {}", e.message())))?;
        mesh.checked(name)
    }

    fn checked(self, name: &str) -> Result<MeshSpec, Diagnostic> {
        let wrong = |what: String| Err(error(format!("mesh '{name}': {what}")));
        if self.axes.is_empty() || self.axes.len() > MOST_AXES {
            return wrong(format!("it has {} axes, 1 to {MOST_AXES} are possible", self.axes.len()));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        for (i, a) in self.axes.iter().enumerate() {
            if a.devices == 0 || !positive(a.bandwidth) || !(a.latency.is_finite() && a.latency >= 0.0) {
                return wrong(format!("axis {i} needs devices, a positive bandwidth and a latency"));
            }
        }
        let devices = self.axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.devices));
        if devices.is_none_or(|n| n > MOST_DEVICES) {
            return wrong(format!("it has more than {MOST_DEVICES} devices"));
        }
        if !positive(self.memory) || !positive(self.bandwidth) || !self.flops.values().all(|f| positive(*f)) {
            return wrong("memory, bandwidth and flops must be positive".into());
        }
        if !(self.overhead.is_finite() && self.overhead >= 0.0) || self.cores == Some(0) {
            return wrong("overhead must not be negative, cores not 0".into());
        }
        if self.pointwise.is_some_and(|rate| !positive(rate)) {
            return wrong("pointwise must be positive".into());
        }
        for near in std::iter::once(&self.caches).chain(self.axes.iter().map(|a| &a.short)) {
            let ascending = near.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
            if !ascending || !near.iter().all(|n| positive(n.bytes) && positive(n.bandwidth)) {
                return wrong(
                    "caches and short messages need positive bytes and bandwidths, the shortest first".into(),
                );
            }
        }
        if !self.flops.contains_key("other") {
            return wrong("flops must name 'other', for element types that it does not name".into());
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

    /// Floating-point operations a second on elements of this type.
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

/// Cores of a Zen 4 server: 117 GFLOP/s in f32 each; what one core writes, another reads through the cache they share.
/// `of-opt measure` says what those of another machine do.
fn cpu(shape: &[usize]) -> MeshSpec {
    let axis = |d: &usize| MeshAxis { devices: *d, bandwidth: 8e9, latency: 1e-6, short: Vec::new() };
    MeshSpec {
        device: "cpu".into(),
        memory: 8e9,
        bandwidth: 1e10,
        caches: vec![Near { bytes: 1e6, bandwidth: 7.5e10 }],
        overhead: 1.4e-7,
        cores: None,
        flops: flops(&[("f32", 1.17e11), ("f64", 5.8e10), ("other", 3e10)]),
        pointwise: Some(3e10),
        axes: shape.iter().map(axis).collect(),
    }
}

/// H100 SXM: dense tensor-core peaks of its data sheet, of which large products reach about two thirds; NVLink 4 gives
/// 450 GB/s each way, one 400 Gbit/s InfiniBand port a GPU 50 GB/s.
fn dgx_h100(shape: &[usize]) -> MeshSpec {
    const REACHED: f64 = 0.65;
    let peaks = [("f16", 9.9e14), ("bf16", 9.9e14), ("f32", 4.9e14), ("f64", 6.7e13), ("other", 6e13)];
    let axis = |i: usize| {
        let inside = shape[i..].iter().product::<usize>() <= 8;
        let (bandwidth, latency) = if inside { (4.5e11, 3e-6) } else { (5e10, 8e-6) };
        MeshAxis { devices: shape[i], bandwidth, latency, short: Vec::new() }
    };
    MeshSpec {
        device: "cuda".into(),
        memory: 80e9,
        bandwidth: 3.35e12,
        caches: Vec::new(),
        overhead: 0.0,
        cores: None,
        flops: flops(&peaks.map(|(n, f)| (n, f * REACHED))),
        pointwise: None,
        axes: (0..shape.len()).map(axis).collect(),
    }
}

/// Machines of 16 cores with eight memory channels.
fn ethernet(shape: &[usize]) -> MeshSpec {
    let axis = |d: &usize| MeshAxis { devices: *d, bandwidth: 3.1e9, latency: 3e-5, short: Vec::new() };
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
    fn presets_and_files() {
        let m = MeshSpec::named("dgx-h100[4x8]").unwrap();
        assert_eq!((m.shape(), m.devices()), (vec![4, 8], 32));
        assert!(m.axes[0].bandwidth < m.axes[1].bandwidth);
        assert!(m.flops(DType::F16) > m.flops(DType::F32));
        for (text, what) in [
            ("tpu[4]", "no mesh 'tpu'"),
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
        let near = "cache = [{ bytes = 1e6, bandwidth = 2e9 }]\n";
        let m = MeshSpec::parse(&text(&format!("cores = 1\noverhead = 1e-7\npointwise = 1e9\n{near}")), "x").unwrap();
        assert_eq!((m.cores, m.overhead, m.pointwise), (Some(1), 1e-7, Some(1e9)));
        assert_eq!(m.caches, [Near { bytes: 1e6, bandwidth: 2e9 }]);
        let none = "cache = [{ bytes = 1e6, bandwidth = 0.0 }]\n";
        let backwards = "cache = [{ bytes = 2e6, bandwidth = 1e9 }, { bytes = 1e6, bandwidth = 2e9 }]\n";
        for wrong in ["cores = 0\n", "overhead = -1.0\n", "pointwise = 0.0\n", none, backwards] {
            assert!(MeshSpec::parse(&text(wrong), "x").is_err(), "{wrong}");
        }
    }
}
