//! Launchers: what mpirun, srun, torchrun, Kubernetes and `of-opt run --ranks` say in environment variables.

use std::fmt;

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `of-opt run --ranks N`.
    OfOpt,
    /// torchrun, and what sets the same variables, such as Kubeflow Trainer.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Hydra: the mpirun of MPICH and Intel MPI.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// An Indexed Job or JobSet of Kubernetes.
    Kubernetes,
}

/// The variables of a launcher: rank and number of ranks, and what gives the address of the rendezvous.
struct Variables {
    launcher: Launcher,
    rank: &'static str,
    ranks: Option<&'static str>,
    host: Option<&'static str>,
}

/// In the order in which they are looked at: a launcher may run inside of another one's job.
const VARIABLES: [Variables; 6] = [
    Variables { launcher: Launcher::OfOpt, rank: "OF_RANK", ranks: Some("OF_RANKS"), host: None },
    Variables { launcher: Launcher::Torchrun, rank: "RANK", ranks: Some("WORLD_SIZE"), host: Some("MASTER_ADDR") },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: Some("OMPI_COMM_WORLD_SIZE"),
        host: None,
    },
    Variables { launcher: Launcher::Hydra, rank: "PMI_RANK", ranks: Some("PMI_SIZE"), host: None },
    Variables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: Some("SLURM_NTASKS"),
        host: Some("SLURM_LAUNCH_NODE_IPADDR"),
    },
    Variables { launcher: Launcher::Kubernetes, rank: "JOB_COMPLETION_INDEX", ranks: None, host: None },
];

/// The place of this process among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Who says so.
    pub launcher: Launcher,
    /// The rank.
    pub rank: u32,
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
    /// When a variable is no number, as text that names it.
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
            if ranks.is_some_and(|ranks| rank >= ranks) {
                return Err(format!("{}={rank} is no rank of {}", variables.rank, ranks.unwrap_or(0)));
            }
            let host = variables.host.and_then(variable);
            let port = variable("MASTER_PORT").unwrap_or_else(|| PORT.into());
            let host =
                host.map(|host| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") });
            let rendezvous = variable("OF_RENDEZVOUS").or(host);
            let token = variable("OF_JOB_TOKEN").filter(|token| !token.is_empty());
            return Ok(Some(Placement { launcher: variables.launcher, rank, ranks, rendezvous, token }));
        }
        Ok(None)
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OfOpt => "of-opt",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "Hydra",
            Launcher::Slurm => "Slurm",
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
        is(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], Launcher::OpenMpi, Some(2), None);
        is(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], Launcher::Hydra, Some(2), None);
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_LAUNCH_NODE_IPADDR", "::1")];
        is(&slurm, Launcher::Slurm, Some(2), Some("[::1]:29400"));
        is(&[("JOB_COMPLETION_INDEX", "1")], Launcher::Kubernetes, None, None);
    }

    #[test]
    fn one_rank_alone_is_none_and_numbers_are_checked() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        assert_eq!(of(&[("SLURM_PROCID", "0")]), Ok(None));
        assert!(of(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err().contains("RANK=x"));
        assert!(of(&[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err().contains("no rank of 2"));
    }
}
