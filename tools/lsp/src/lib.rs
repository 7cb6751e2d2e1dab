//! A language server for IR text: diagnostics, hover, navigation, completion, and passes as code actions.
//!
//! One thread reads messages, one answers them, one parses and verifies. A change of a document is parsed once; requests
//! then look up positions in the index that the parser made. Requests that need the index wait for it, and a newer
//! change replaces an older one that is not parsed yet. Passes run on threads of their own.

mod analysis;
mod completion;
mod diagnostics;
mod edit;
mod hover;
mod navigation;
mod params;
mod queue;
mod run_pass;
mod semantic_tokens;
mod server;
mod text;
mod transport;

pub use server::{Ended, serve};
