//! `cargo xtask mpi`: Open MPI and MPICH, from the system's packages. The program opens their libraries at run time, so no headers
//! are needed.

use crate::system::{apt, run_all};

/// Debian's names: both can be there at once.
const OPEN_MPI: (&str, &str) = ("openmpi-bin", "mpirun.openmpi");
const MPICH: (&str, &str) = ("mpich", "mpirun.mpich");

/// Installs both.
///
/// # Errors
/// When there is no apt-get, the user may not use it, or it fails.
pub fn install() -> Result<(), String> {
    apt(&[OPEN_MPI.0, MPICH.0])
}

/// Whether the launchers of both are there.
pub fn installed() -> bool {
    run_all(&[OPEN_MPI.1, MPICH.1])
}
