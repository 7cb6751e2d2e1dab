//! Launchers: what mpirun, srun, torchrun, Kubernetes and `of-opt run --ranks` say in environment variables.

use std::fmt;

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `of-opt run --ranks N`.
    OfOpt,
    /// torchrun, and what sets the same variables, such as the PyTorchJob of Kubeflow's Training Operator.
    Torchrun,
    /// Open MPI's mpirun, by hand or by the MPI policy of Kubeflow Trainer.
    OpenMpi,
    /// Hydra: the mpirun of MPICH and Intel MPI.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// The torch policy of Kubeflow Trainer, which sets variables for torchrun. Without torchrun, each node is a rank.
    KubeflowTorch,
    /// An Indexed Job or JobSet of Kubernetes.
    Kubernetes,
}

/// The variables of a launcher: rank and number of ranks, the rank among those of this machine, and what gives the address of the
/// rendezvous.
struct Variables {
    launcher: Launcher,
    rank: &'static str,
    ranks: Option<&'static str>,
    /// Without one, there is one rank on each machine.
    local_rank: Option<&'static str>,
    host: Host,
    port: &'static str,
}

/// What says the host of rank 0.
enum Host {
    /// No variable.
    Unknown,
    /// This variable.
    Named(&'static str),
    /// The first of these variables that is set: a list of nodes, of which the first one has rank 0.
    FirstOf(&'static [&'static str]),
}

/// In the order in which they are looked at: a launcher may run inside of another one's job.
const VARIABLES: [Variables; 7] = [
    Variables {
        launcher: Launcher::OfOpt,
        rank: "OF_RANK",
        ranks: Some("OF_RANKS"),
        local_rank: Some("OF_LOCAL_RANK"),
        host: Host::Unknown,
        port: "MASTER_PORT",
    },
    Variables {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        ranks: Some("WORLD_SIZE"),
        local_rank: Some("LOCAL_RANK"),
        host: Host::Named("MASTER_ADDR"),
        port: "MASTER_PORT",
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: Some("OMPI_COMM_WORLD_SIZE"),
        local_rank: Some("OMPI_COMM_WORLD_LOCAL_RANK"),
        host: Host::Unknown,
        port: "MASTER_PORT",
    },
    Variables {
        launcher: Launcher::Hydra,
        rank: "PMI_RANK",
        ranks: Some("PMI_SIZE"),
        local_rank: Some("MPI_LOCALRANKID"),
        host: Host::Unknown,
        port: "MASTER_PORT",
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: Some("SLURM_NTASKS"),
        local_rank: Some("SLURM_LOCALID"),
        // SLURM_LAUNCH_NODE_IPADDR is where srun was called, which may be a login node without any rank.
        host: Host::FirstOf(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]),
        port: "MASTER_PORT",
    },
    Variables {
        launcher: Launcher::KubeflowTorch,
        rank: "PET_NODE_RANK",
        ranks: Some("PET_NNODES"),
        local_rank: None,
        host: Host::Named("PET_MASTER_ADDR"),
        port: "PET_MASTER_PORT",
    },
    Variables {
        launcher: Launcher::Kubernetes,
        rank: "JOB_COMPLETION_INDEX",
        ranks: None,
        local_rank: None,
        host: Host::Unknown,
        port: "MASTER_PORT",
    },
];

/// How many processes Kubeflow Trainer's torch policy wants on each node.
const PROCESSES_OF_NODE: &str = "PET_NPROC_PER_NODE";

/// The place of this process among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Who says so.
    pub launcher: Launcher,
    /// The rank.
    pub rank: u32,
    /// Its number among the ranks of this machine; 0 where the launcher does not say it.
    pub local_rank: u32,
    /// Ranks of the job, where the launcher says it.
    pub ranks: Option<u32>,
    /// `HOST:PORT` of the rendezvous, where it is known.
    pub rendezvous: Option<String>,
    /// The job's token, if there is one.
    pub token: Option<String>,
}

/// The port of the rendezvous where a launcher names a host alone.
const PORT: &str = "29400";

impl Placement {
    /// What `variable` says, which gives the value of an environment variable. `None` where no launcher started this process
    /// as one of several ranks.
    ///
    /// # Errors
    /// When a variable is no number, no rank, or no list of nodes, as text that names it.
    pub fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Placement>, String> {
        let number = |name: &str| -> Result<Option<u32>, String> {
            let parse = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
            variable(name).map(parse).transpose()
        };
        for variables in VARIABLES {
            let Some(rank) = number(variables.rank)? else { continue };
            let ranks = variables.ranks.map(number).transpose()?.flatten();
            // One rank alone is none: a container or an interactive job may set these variables.
            if ranks == Some(1) || (variables.ranks.is_some() && ranks.is_none()) {
                continue;
            }
            // Several processes on a node are torchrun's to start, which sets its own variables.
            let several = variable(PROCESSES_OF_NODE).is_some_and(|processes| processes != "1");
            if variables.launcher == Launcher::KubeflowTorch && several {
                continue;
            }
            if let Some(ranks) = ranks.filter(|ranks| rank >= *ranks) {
                let count = variables.ranks.map_or(String::new(), |name| format!("{name}={ranks}"));
                return Err(out_of_range(variables.rank, rank, &count, ranks));
            }
            let local_rank = variables.local_rank.map(number).transpose()?.flatten().unwrap_or(0);
            let rendezvous = match variable("OF_RENDEZVOUS") {
                Some(rendezvous) => Some(rendezvous),
                None => rendezvous(&variables, variable)?,
            };
            let token = variable("OF_JOB_TOKEN").filter(|token| !token.is_empty());
            let launcher = variables.launcher;
            return Ok(Some(Placement { launcher, rank, local_rank, ranks, rendezvous, token }));
        }
        Ok(None)
    }

    /// Checks the rank against a number of ranks that the launcher does not say. `said_by` is who says it, such as `--ranks 2`.
    ///
    /// # Errors
    /// When there is no such rank, as text that names the variable and both numbers.
    pub fn check_ranks(&self, ranks: u32, said_by: &str) -> Result<(), String> {
        if self.rank < ranks {
            return Ok(());
        }
        let own = VARIABLES.iter().find(|variables| variables.launcher == self.launcher);
        Err(out_of_range(own.map_or("the rank", |variables| variables.rank), self.rank, said_by, ranks))
    }
}

fn out_of_range(variable: &str, rank: u32, said_by: &str, ranks: u32) -> String {
    format!("{variable}={rank}, and {said_by}: ranks are numbered from 0 to {}", ranks.saturating_sub(1))
}

/// torchrun sets it where a store of its own listens at the port. The rendezvous is then at the next one.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// `HOST:PORT` of the rendezvous, where the launcher says the host.
fn rendezvous(variables: &Variables, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    let host = match variables.host {
        Host::Unknown => None,
        Host::Named(name) => variable(name).filter(|host| !host.is_empty()),
        Host::FirstOf(names) => match names.iter().find_map(|name| Some((name, variable(name)?))) {
            Some((name, list)) => Some(
                first_node(&list).ok_or_else(|| format!("{name}={list} is no list of nodes, such as node[01-04,7]"))?,
            ),
            None => None,
        },
    };
    let mut port = variable(variables.port).unwrap_or_else(|| PORT.into());
    let is_taken = variables.launcher == Launcher::Torchrun && variable(AGENT_STORE).is_some_and(|set| set == "True");
    if let (true, Ok(taken)) = (is_taken, port.parse::<u16>()) {
        port = taken.checked_add(1).unwrap_or(taken - 1).to_string();
    }
    Ok(host.map(|host| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
}

/// The first node of a list of Slurm: names with commas between them, in which brackets hold numbers and ranges of numbers, as in
/// `gpu[01-04,7],login`. Source: the manual page of scontrol, `show hostlist`.
fn first_node(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list.trim());
    loop {
        let at = rest.find(['[', ']', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(inside) = rest.strip_prefix('[') else { break };
        let (numbers, behind) = inside.split_once(']')?;
        let first = numbers.split(',').next()?;
        let (first, last) = first.split_once('-').unwrap_or((first, first));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        name.push_str(first);
        rest = behind;
    }
    let is_node = !name.is_empty() && !rest.starts_with(']') && !name.contains(char::is_whitespace);
    is_node.then_some(name)
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OfOpt => "of-opt",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "Hydra",
            Launcher::Slurm => "Slurm",
            Launcher::KubeflowTorch => "Kubeflow Trainer",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Placement>, String> {
        Placement::of_environment(&|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_recognised() {
        let is = |variables: &[(&str, &str)], launcher, ranks, rendezvous: Option<&str>| {
            let placement = of(variables).unwrap().unwrap();
            assert_eq!((placement.launcher, placement.rank, placement.ranks), (launcher, 1, ranks));
            assert_eq!(placement.rendezvous.as_deref(), rendezvous);
        };
        let own = [("OF_RANK", "1"), ("OF_RANKS", "2"), ("OF_RENDEZVOUS", "127.0.0.1:5")];
        is(&own, Launcher::OfOpt, Some(2), Some("127.0.0.1:5"));
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "99")];
        is(&torchrun, Launcher::Torchrun, Some(4), Some("node7:99"));
        let with_store = |port: &'static str, set: &'static str| {
            [&torchrun[..3], &[("MASTER_PORT", port), ("TORCHELASTIC_USE_AGENT_STORE", set)]].concat()
        };
        is(&with_store("99", "True"), Launcher::Torchrun, Some(4), Some("node7:100"));
        is(&with_store("65535", "True"), Launcher::Torchrun, Some(4), Some("node7:65534"));
        is(&with_store("99", "False"), Launcher::Torchrun, Some(4), Some("node7:99"));
        is(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], Launcher::OpenMpi, Some(2), None);
        is(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], Launcher::Hydra, Some(2), None);
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_NODELIST", "node[07-09]")];
        is(&slurm, Launcher::Slurm, Some(2), Some("node07:29400"));
        is(&[("JOB_COMPLETION_INDEX", "1")], Launcher::Kubernetes, None, None);
        for (variables, local_rank) in [
            (&[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")][..], 1),
            (&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "3")], 3),
            (&[("PMI_RANK", "5"), ("PMI_SIZE", "8")], 0),
        ] {
            assert_eq!(of(variables).unwrap().unwrap().local_rank, local_rank, "{variables:?}");
        }
    }

    /// The node of rank 0 is that of the step, then that of the job. Where srun was called does not matter.
    #[test]
    fn slurm_names_the_node_of_rank_0() {
        let at = |more: &[(&str, &str)]| {
            let all = [&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")], more];
            of(&all.concat()).map(|placement| placement.unwrap().rendezvous)
        };
        let (job, step) = (("SLURM_JOB_NODELIST", "node[01-04,7]"), ("SLURM_STEP_NODELIST", "node[03,7]"));
        assert_eq!(at(&[job]).unwrap().as_deref(), Some("node01:29400"));
        assert_eq!(at(&[job, step]).unwrap().as_deref(), Some("node03:29400"));
        assert_eq!(at(&[job, ("MASTER_PORT", "7")]).unwrap().as_deref(), Some("node01:7"));
        assert_eq!(at(&[]).unwrap(), None);
        let wrong = at(&[("SLURM_STEP_NODELIST", "node[x]")]).unwrap_err();
        assert!(wrong.contains("SLURM_STEP_NODELIST=node[x] is no list of nodes"), "{wrong}");
    }

    #[test]
    fn lists_of_nodes_begin_with_a_node() {
        for (list, first) in [
            ("login", Some("login")),
            ("a,b", Some("a")),
            ("node[01-04,7]", Some("node01")),
            ("node[7]", Some("node7")),
            ("node[9,11-12],gpu[1-2]", Some("node9")),
            ("rack[1-2]node[03-04].example", Some("rack1node03.example")),
            ("node-a[1-2]", Some("node-a1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("", None),
            (",a", None),
            ("node[", None),
            ("node]", None),
            ("node[1-", None),
            ("node[1-]", None),
            ("node[]", None),
            ("node[a-b]", None),
            ("two words", None),
        ] {
            assert_eq!(first_node(list).as_deref(), first, "{list}");
        }
    }

    /// Variables as Kubeflow Trainer sets them: of its MPI policy together with those of mpirun and of the Indexed Job, and of its torch
    /// policy. Source: pkg/runtime/framework/plugins of kubeflow/trainer.
    #[test]
    fn policies_of_kubeflow_trainer_are_recognised() {
        let mpi = [
            ("JOB_COMPLETION_INDEX", "0"),
            ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
            ("OMPI_MCA_orte_set_default_slots", "2"),
            ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
        ];
        // The pod of the launcher before mpirun: its completion index is no rank of a job whose number of ranks is known.
        let launcher = of(&mpi).unwrap().unwrap();
        assert_eq!((launcher.launcher, launcher.ranks), (Launcher::Kubernetes, None));
        let of_mpirun = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let rank = of(&[&mpi[..], &of_mpirun].concat()).unwrap().unwrap();
        let want = Placement {
            launcher: Launcher::OpenMpi,
            rank: 3,
            local_rank: 1,
            ranks: Some(4),
            rendezvous: None,
            token: None,
        };
        assert_eq!(rank, want);
        let torch = [
            ("JOB_COMPLETION_INDEX", "1"),
            ("PET_NNODES", "4"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "train-node-0-0.train"),
            ("PET_MASTER_PORT", "29500"),
        ];
        let node = of(&[&torch[..], &[("PET_NPROC_PER_NODE", "1")]].concat()).unwrap().unwrap();
        assert_eq!((node.launcher, node.rank, node.ranks), (Launcher::KubeflowTorch, 1, Some(4)));
        assert_eq!(node.rendezvous.as_deref(), Some("train-node-0-0.train:29500"));
        // Several processes of a node are torchrun's.
        for processes in ["2", "auto"] {
            let node = of(&[&torch[..], &[("PET_NPROC_PER_NODE", processes)]].concat()).unwrap().unwrap();
            assert_eq!(node.launcher, Launcher::Kubernetes, "{processes}");
        }
    }

    #[test]
    fn one_rank_alone_is_none_and_numbers_are_checked() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        assert_eq!(of(&[("SLURM_PROCID", "0")]), Ok(None));
        assert!(of(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err().contains("RANK=x"));
        for (rank, ranks) in [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("PMI_RANK", "PMI_SIZE")] {
            let wrong = of(&[(rank, "2"), (ranks, "2")]).unwrap_err();
            assert_eq!(wrong, format!("{rank}=2, and {ranks}=2: ranks are numbered from 0 to 1"));
        }
        let pod = of(&[("JOB_COMPLETION_INDEX", "4")]).unwrap().unwrap();
        assert_eq!(pod.check_ranks(5, "--ranks 5"), Ok(()));
        let wrong = pod.check_ranks(4, "--ranks 4").unwrap_err();
        assert_eq!(wrong, "JOB_COMPLETION_INDEX=4, and --ranks 4: ranks are numbered from 0 to 3");
    }
}
