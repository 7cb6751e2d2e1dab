//! TLS: the server's certificate, and clients that must have one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Files of TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// The server's certificates, its own first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates that sign those of clients. With them, clients without a certificate are refused.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS connections for a protocol of HTTP.
///
/// # Errors
/// When a file cannot be read, or key and certificate do not fit.
pub fn acceptor(options: &TlsOptions, protocol: &[u8]) -> Result<TlsAcceptor, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| format!("{}: {e}", path.display()))?)
        }
    };
    let key = &options.key;
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|e| format!("'{}' holds no private key: {e}", key.display()))?;
    let certificate = &options.certificate;
    let mut config = builder
        .with_single_cert(certificates(certificate)?, key)
        .map_err(|e| format!("'{}' and its key cannot be used: {e}", certificate.display()))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("'{}' holds no certificates: {e}", path.display());
    let list = CertificateDer::pem_file_iter(path).map_err(|e| wrong(&e))?;
    let list = list.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))?;
    if list.is_empty() { Err(wrong(&"the file has none")) } else { Ok(list) }
}
