//! `of-opt view`: the interactive page of a plan or model, served to a browser of this machine.

use std::process::{Command, Stdio};

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::{Observer, error};

use crate::arguments::ModelFile;
use crate::console::Console;
use crate::page_server::PageServer;
use crate::{commands::inspect, model_file};

/// Flags.
#[derive(Args, Debug)]
pub struct View {
    /// What to show.
    #[command(flatten)]
    pub model: ModelFile,
    /// The port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Open the page in the desktop's browser
    #[arg(long)]
    pub open: bool,
}

/// Executes the subcommand; it ends with the signal that ends the program.
///
/// # Errors
/// When the file cannot be read, the port is taken, or there is no browser for --open.
pub fn view(c: &View, console: &Console) -> Result<(), Diagnostics> {
    let page = inspect::page(&model_file::open(&c.model, console)?).to_html();
    let server = PageServer::new(c.port, page).map_err(|e| {
        let what = format!("port {} of 127.0.0.1 cannot be used: {e}", c.port);
        error(Code::IO, what).hint("without --port the system chooses a free one")
    })?;
    let address = server.address();
    console.print(&format!("{address}\n"))?;
    if c.open {
        open(&address)?;
    }
    console.note("Ctrl-C ends it");
    server.serve().map_err(|e| error(Code::IO, format!("{address} takes no more connections: {e}")).into())
}

/// Starts the desktop's browser, which may run until the page is closed.
fn open(address: &str) -> Result<(), Diagnostics> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started = Command::new(program).arg(address).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let failed = |e| {
        let hint = "leave out --open, and open the address in a browser";
        Diagnostics::from(error(Code::RUN, format!("'{program}' cannot be started: {e}")).hint(hint))
    };
    let mut browser = started.map_err(failed)?;
    let wait = move || match browser.wait() {
        Ok(status) if status.success() => {}
        ended => tracing::warn!(program, ?ended, "no browser was opened"),
    };
    std::thread::Builder::new().name("browser".into()).spawn(wait).map(drop).map_err(failed)
}
