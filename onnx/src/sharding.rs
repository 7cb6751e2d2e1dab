//! Conversion between placements on a mesh and ONNX's multi-device annotations.
//!
//! A mesh is a device configuration. ONNX counts devices and knows no axes of a mesh, so the names of the devices carry
//! their coordinates: `cpu:1:0` is a CPU at row 1, column 0. A tensor's SBP is a sharding spec: shards of its split axes in
//! row-major order, each on one device or on a group of devices that hold the same.

use of_ir::{Mesh, NdSbp, Sbp, Shape};

use crate::proto::simple_sharded_dim_proto::Dim as Sharded;
use crate::proto::{
    DeviceConfigurationProto, IntIntListEntryProto, ShardedDimProto, ShardingSpecProto, SimpleShardedDimProto,
};

/// The limit on devices; bounds the allocation for a damaged model.
const MAX_DEVICES: usize = 1 << 16;

/// The device configuration of a mesh.
pub(crate) fn configuration(name: &str, mesh: &Mesh) -> DeviceConfigurationProto {
    let n: usize = mesh.shape.iter().product();
    let device = |i: usize| {
        let at = coordinates(&mesh.shape, i).into_iter().map(|c| format!(":{c}")).collect::<String>();
        format!("{}{at}", mesh.devices)
    };
    DeviceConfigurationProto {
        name: Some(name.into()),
        num_devices: i32::try_from(n).ok(),
        device: (0..n).map(device).collect(),
    }
}

/// The mesh of a device configuration: of the shape encoded in its device names, else one-dimensional.
///
/// # Errors
/// When the number of devices is invalid.
pub(crate) fn mesh(proto: &DeviceConfigurationProto) -> Result<Mesh, String> {
    let n = usize::try_from(proto.num_devices()).ok().filter(|n| (1..=MAX_DEVICES).contains(n));
    let n = n.ok_or_else(|| format!("device configuration '{}' has {} devices", proto.name(), proto.num_devices()))?;
    let row = Mesh { devices: "cpu".into(), shape: vec![n], part: None };
    let Some((kind, last)) = proto.device.last().and_then(|d| d.split_once(':')) else { return Ok(row) };
    let Ok(last) = last.split(':').map(str::parse::<usize>).collect::<Result<Vec<_>, _>>() else { return Ok(row) };
    if last.iter().any(|c| *c >= MAX_DEVICES) {
        return Ok(row);
    }
    let mesh = Mesh { devices: kind.into(), shape: last.iter().map(|c| c + 1).collect(), part: None };
    // Names that do not say where every device is are just names.
    Ok(if configuration(proto.name(), &mesh).device == proto.device { mesh } else { row })
}

fn coordinates(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (c, n) in at.iter_mut().zip(shape).rev() {
        *c = i % n;
        i /= n;
    }
    at
}

/// A split tensor axis and the number of its shards.
type Split = (u8, usize);

/// For every device the shard that it holds, with the split tensor axes and their numbers of shards; `None` for a
/// partial value.
fn layout(sbp: &NdSbp, mesh: &Mesh) -> Option<(Vec<usize>, Vec<Split>)> {
    let mut split: Vec<Split> = Vec::new();
    for (s, n) in sbp.axes.iter().zip(&mesh.shape) {
        match s {
            Sbp::Broadcast => {}
            Sbp::Partial(_) => return None,
            Sbp::Split(axis) => match split.iter_mut().find(|(a, _)| a == axis) {
                Some((_, shards)) => *shards *= n,
                None => split.push((*axis, *n)),
            },
        }
    }
    split.sort_unstable();
    let devices = mesh.shape.iter().product();
    let shard = |device: usize| {
        let at = coordinates(&mesh.shape, device);
        split.iter().fold(0, |shard, (axis, shards)| {
            let along = sbp.axes.iter().zip(mesh.shape.iter().zip(&at)).filter(|(s, _)| **s == Sbp::Split(*axis));
            shard * shards + along.fold(0, |i, (_, (n, c))| i * n + c)
        })
    };
    Some(((0..devices).map(shard).collect(), split))
}

/// The sharding spec of tensor `name`.
///
/// # Errors
/// For partial values, which ONNX lacks.
pub(crate) fn encode(name: &str, sbp: &NdSbp, mesh: &Mesh, shape: Option<&Shape>) -> Result<ShardingSpecProto, String> {
    let (shards, split) = layout(sbp, mesh).ok_or_else(|| format!("'{name}' is a partial value ({sbp})"))?;
    let count = split.iter().map(|(_, n)| n).product::<usize>();
    let mut spec = ShardingSpecProto { tensor_name: Some(name.into()), ..ShardingSpecProto::default() };
    for shard in 0..count {
        let holders = shards.iter().enumerate().filter(|(_, s)| **s == shard).map(|(device, _)| device as i64);
        let holders: Vec<i64> = holders.collect();
        match holders.as_slice() {
            // Everything on all devices needs no groups.
            _ if count == 1 => spec.device = holders,
            [one] => spec.device.push(*one),
            _ => {
                // A group is named by a number that no device has.
                let key = -1 - shard as i64;
                spec.device.push(key);
                spec.index_to_device_group_map.push(IntIntListEntryProto { key: Some(key), value: holders });
            }
        }
    }
    for (axis, shards) in split {
        let dim = shape.and_then(|s| s.get(usize::from(axis))).and_then(|d| match d.as_const() {
            Some(n) => Some(Sharded::DimValue(n)),
            None => crate::types::dim_text(d).map(Sharded::DimParam),
        });
        let simple = SimpleShardedDimProto { dim, num_shards: Some(shards as i64) };
        spec.sharded_dim.push(ShardedDimProto { axis: Some(axis.into()), simple_sharding: vec![simple] });
    }
    Ok(spec)
}

/// The placement that a sharding spec of a tensor of rank `rank` says.
///
/// # Errors
/// When no SBP on the mesh says the same.
pub(crate) fn decode(spec: &ShardingSpecProto, name: &str, mesh: &Mesh, rank: Option<usize>) -> Result<NdSbp, String> {
    let fault = |why: &str| format!("the sharding of '{}' {why}", spec.tensor_name());
    let mut dims: Vec<(u8, usize)> = Vec::new();
    for d in &spec.sharded_dim {
        let [simple] = d.simple_sharding.as_slice() else { return Err(fault("splits one axis in several ways")) };
        let axis = match rank {
            Some(rank) => {
                of_ops::shape::axis(d.axis(), rank).map_err(|e| fault(&format!("is wrong: {}", e.message)))?
            }
            None => usize::try_from(d.axis()).map_err(|_| fault("counts axes of a tensor of unknown rank"))?,
        };
        let axis = u8::try_from(axis).map_err(|_| fault("names an axis that no tensor has"))?;
        let shards = usize::try_from(simple.num_shards()).ok().filter(|n| (1..=MAX_DEVICES).contains(n));
        dims.push((axis, shards.ok_or_else(|| fault("has no valid number of shards"))?));
    }
    let count = dims.iter().try_fold(1usize, |n, (_, s)| n.checked_mul(*s)).filter(|n| *n <= MAX_DEVICES);
    let count = count.ok_or_else(|| fault("has too many shards"))?;
    if count != 1 && spec.device.len() != count {
        return Err(fault(&format!("has {count} shards on {} devices or groups", spec.device.len())));
    }
    let mut shards: Vec<Option<usize>> = vec![None; mesh.shape.iter().product()];
    for (i, device) in spec.device.iter().enumerate() {
        let shard = if count == 1 { 0 } else { i };
        let group = spec.index_to_device_group_map.iter().find(|e| e.key() == *device);
        for d in group.map_or(std::slice::from_ref(device), |g| &g.value) {
            let slot = usize::try_from(*d).ok().and_then(|d| shards.get_mut(d));
            *slot.ok_or_else(|| fault(&format!("names device {d}, which the configuration does not have")))? =
                Some(shard);
        }
    }
    let shards: Option<Vec<usize>> = shards.into_iter().collect();
    let shards = shards.ok_or_else(|| fault("leaves devices of the configuration out"))?;
    // A step along a mesh axis moves along the tensor axis that it splits.
    let mut axes = Vec::with_capacity(mesh.shape.len());
    for (i, n) in mesh.shape.iter().enumerate() {
        let step: usize = mesh.shape[i + 1..].iter().product();
        let place = |device: usize| coordinates(&dims.iter().map(|(_, n)| *n).collect::<Vec<_>>(), shards[device]);
        let moved = if *n > 1 {
            let (from, to) = (place(0), place(step));
            dims.iter().zip(from.iter().zip(&to)).filter(|(_, (a, b))| a != b).map(|(d, _)| d.0).collect()
        } else {
            Vec::new()
        };
        axes.push(match moved.as_slice() {
            [] => Sbp::Broadcast,
            [axis] => Sbp::Split(*axis),
            _ => return Err(fault("splits two axes along one axis of the mesh")),
        });
    }
    let sbp = NdSbp { mesh: name.into(), axes: axes.into_iter().collect() };
    dims.retain(|(_, n)| *n > 1);
    dims.sort_unstable();
    match layout(&sbp, mesh) {
        Some((again, mut split)) => {
            split.retain(|(_, n)| *n > 1);
            if again == shards && split == dims { Ok(sbp) } else { Err(fault("is no split along axes of the mesh")) }
        }
        None => Err(fault("is no split along axes of the mesh")),
    }
}

#[cfg(test)]
mod tests {
    use of_ir::Dim;

    use super::*;

    #[test]
    fn every_placement_round_trips() {
        let mesh2 = Mesh { devices: "cuda".into(), shape: vec![2, 3], part: None };
        assert_eq!(mesh(&configuration("m", &mesh2)).unwrap(), mesh2);
        let shape = vec![Dim::from(12i64), Dim::symbol("N")];
        let all = [Sbp::Broadcast, Sbp::Split(0), Sbp::Split(1)];
        for a in all {
            for b in all {
                let sbp = NdSbp { mesh: "m".into(), axes: [a, b].into_iter().collect() };
                let spec = encode("x", &sbp, &mesh2, Some(&shape)).unwrap();
                assert_eq!(decode(&spec, "m", &mesh2, Some(2)).unwrap(), sbp, "{spec:?}");
            }
        }
        let partial =
            NdSbp { mesh: "m".into(), axes: [Sbp::Partial(of_ir::PartialKind::Sum); 2].into_iter().collect() };
        assert!(encode("x", &partial, &mesh2, None).unwrap_err().contains("partial"));
    }

    #[test]
    fn configurations_without_coordinates_are_rows() {
        let named = |device: &[&str], n| DeviceConfigurationProto {
            name: Some("m".into()),
            num_devices: Some(n),
            device: device.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(mesh(&named(&[], 4)).unwrap().shape, [4]);
        assert_eq!(mesh(&named(&["gpu:a", "gpu:b"], 2)).unwrap().shape, [2]);
        assert_eq!(mesh(&named(&["gpu:0", "gpu:1"], 2)).unwrap().devices, "gpu");
        assert!(mesh(&named(&[], 0)).is_err());
    }
}
