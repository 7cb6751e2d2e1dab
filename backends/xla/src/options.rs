//! Compile options of a program: the fields that we set in the messages of `compile_options.proto` and `xla_data.proto`.

use std::collections::BTreeMap;

/// `CompileOptionsProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CompileOptions {
    #[prost(message, optional, tag = "3")]
    build: Option<Build>,
    /// Whether it runs on any device.
    #[prost(bool, tag = "4")]
    portable: bool,
    /// Flags of the compiler.
    #[prost(btree_map = "string, message", tag = "7")]
    flags: BTreeMap<String, Flag>,
}

/// `OptionOverrideProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Flag {
    #[prost(oneof = "Setting", tags = "2")]
    to: Option<Setting>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Setting {
    #[prost(bool, tag = "2")]
    Bool(bool),
}

/// `ExecutableBuildOptionsProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Build {
    #[prost(int64, tag = "4")]
    replicas: i64,
    #[prost(int64, tag = "5")]
    partitions: i64,
    #[prost(message, optional, tag = "9")]
    assignment: Option<Assignment>,
}

/// `DeviceAssignmentProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Assignment {
    #[prost(int32, tag = "1")]
    replicas: i32,
    #[prost(int32, tag = "2")]
    computations: i32,
    /// For each computation the devices of its replicas.
    #[prost(message, repeated, tag = "3")]
    devices: Vec<Devices>,
}

/// `DeviceAssignmentProto.ComputationDevice`.
#[derive(Clone, PartialEq, prost::Message)]
struct Devices {
    #[prost(int64, repeated, tag = "1")]
    ids: Vec<i64>,
}

impl CompileOptions {
    /// For any single device, or for a replica on each of these.
    ///
    /// Without this option, maxima and minima on CPUs do not propagate NaN.
    pub fn of(ids: Vec<i64>, cpu: bool) -> Self {
        let exact = ("xla_cpu_enable_fast_min_max".to_string(), Flag { to: Some(Setting::Bool(false)) });
        let flags = cpu.then_some(exact).into_iter().collect();
        let (portable, replicas) = (ids.is_empty(), ids.len());
        let devices = vec![Devices { ids }];
        let assignment = Assignment { replicas: replicas as i32, computations: 1, devices };
        let assignment = (!portable).then_some(assignment);
        Self { build: Some(Build { replicas: replicas.max(1) as i64, partitions: 1, assignment }), portable, flags }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn options_for_any_device_are_those_of_one_replica() {
        assert_eq!(CompileOptions::of(vec![], false).encode_to_vec(), [0x1a, 4, 0x20, 1, 0x28, 1, 0x20, 1]);
    }
}
