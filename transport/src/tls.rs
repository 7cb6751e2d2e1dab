//! Encrypted connections between ranks: TLS 1.3, in which both ends prove who they are.
//!
//! The identity is a certificate that an authority of the job signed, or a key pair that follows from the job's token: both ends
//! then present the same raw public key (RFC 7250), and to have signed with it proves knowledge of the token. The handshake of
//! ranks (`handshake.rs`) takes place inside of the connection and is bound to it.

use std::fmt;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme, version,
};

use crate::stream::Socket;

/// What precedes the 32 bytes of an Ed25519 key in PKCS #8. Source: RFC 8410, section 7.
const ED25519_PKCS8: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// The name that ranks give one another where the identity is the job's and not a host's.
const JOB_NAME: &str = "of-job";

/// What the secret of a connection is derived for.
const SECRET: &[u8] = b"EXPERIMENTAL of-transport rank handshake";

/// Ciphertext that is read at once.
const READ: usize = 128 << 10;

/// Bytes that may be encrypted and wait to be sent.
const PENDING: usize = 512 << 10;

/// Files with the identity of a host, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates that sign those of all hosts.
    pub ca: PathBuf,
    /// The certificates of this host, its own first. Their names include the address of the host in the file of hosts.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How ranks encrypt connections and prove who they are.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// For each rank the name that its certificate must have; none where the identity is the job's.
    names: Arc<Vec<String>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = if self.names.is_empty() { "job token" } else { "certificates" };
        f.debug_struct("Tls").field("identity", &identity).finish_non_exhaustive()
    }
}

impl Tls {
    /// The identity that follows from the job's token. Who has the token can be any rank.
    ///
    /// # Errors
    /// When the key cannot be made.
    pub fn of_token(token: &str) -> Result<Tls, String> {
        let seed = blake3::derive_key("of-transport 2026 job identity", token.as_bytes());
        let mut pkcs8 = ED25519_PKCS8.to_vec();
        pkcs8.extend(seed);
        let provider = Arc::new(ring::default_provider());
        let key = provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8)));
        let key = key.map_err(|e| format!("the job's key cannot be made: {e}"))?;
        let public = key.public_key().ok_or("the job's key has no public key")?.into_owned();
        let identity = CertifiedKey::new(vec![CertificateDer::from(public.as_ref().to_vec())], key);
        let identity = Arc::new(identity);
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Arc::new(JobKey { public, algorithms });
        let client = client_builder(&provider)?.dangerous().with_custom_certificate_verifier(verifier.clone());
        let client =
            client.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&identity))));
        let server = server_builder(&provider)?.with_client_cert_verifier(verifier);
        let server = server.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity)));
        Ok(Tls { client: Arc::new(client), server: Arc::new(server), names: Arc::default() })
    }

    /// The identity of a host. `names` has for each rank the name or address of its host, which its certificate must have.
    ///
    /// # Errors
    /// When a file cannot be read, or key and certificate do not fit.
    pub fn of_certificates(files: &TlsFiles, names: Vec<String>) -> Result<Tls, String> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca)? {
            roots.add(certificate).map_err(|e| format!("'{}': {e}", files.ca.display()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|e| format!("'{}' holds no private key: {e}", files.key.display()))?;
        let unfit = |e: rustls::Error| format!("'{}' and its key cannot be used: {e}", files.certificate.display());
        let client = client_builder(&provider)?.with_root_certificates(Arc::clone(&roots));
        let client = client.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(unfit)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|e| format!("'{}': {e}", files.ca.display()))?;
        let server = server_builder(&provider)?.with_client_cert_verifier(verifier);
        let server = server.with_single_cert(chain, key).map_err(unfit)?;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server), names: Arc::new(names) })
    }

    /// Encrypts a connection that this end made to a rank, or to the server of the rendezvous, which is on the host of the first
    /// rank. The connection must block.
    ///
    /// # Errors
    /// When the other end is not who it should be, or the connection fails.
    pub(crate) fn connect(&self, tcp: TcpStream, to: Option<u32>) -> io::Result<TlsStream> {
        let name = self.names.get(to.unwrap_or(0) as usize).map_or(JOB_NAME, String::as_str);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("'{name}' is no name of a host")))?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        TlsStream::shake_hands(Connection::Client(connection), tcp)
    }

    /// Encrypts a connection that this end accepted. The connection must block.
    ///
    /// # Errors
    /// As [`Tls::connect`].
    pub(crate) fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream> {
        let connection = ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        TlsStream::shake_hands(Connection::Server(connection), tcp)
    }
}

fn client_builder(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    builder.with_protocol_versions(&[&version::TLS13]).map_err(|e| e.to_string())
}

fn server_builder(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, String> {
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    builder.with_protocol_versions(&[&version::TLS13]).map_err(|e| e.to_string())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn fmt::Display| format!("'{}' holds no certificates: {e}", path.display());
    let list = CertificateDer::pem_file_iter(path).map_err(|e| wrong(&e))?;
    let list = list.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))?;
    if list.is_empty() { Err(wrong(&"the file has none")) } else { Ok(list) }
}

/// Accepts the job's public key alone.
#[derive(Debug)]
struct JobKey {
    public: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl JobKey {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match presented.as_ref() == self.public.as_ref() {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(presented.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

/// What the trait asks of TLS 1.2, which no configuration here has.
fn too_old() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::General("ranks speak TLS 1.3".into()))
}

impl ServerCertVerifier for JobKey {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, presented, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for JobKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, presented, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Why the other end of a connection is refused, or refuses this one, where an error says it.
pub(crate) fn refusal(error: &io::Error) -> Option<Refusal> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match inner {
        rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => Refusal::Token,
        rustls::Error::InvalidCertificate(why) => Refusal::Other(format!("its certificate is refused: {why}")),
        rustls::Error::AlertReceived(alert) => {
            Refusal::Other(format!("it refuses this rank's certificate or job token (alert {alert:?})"))
        }
        rustls::Error::InvalidMessage(_) => Refusal::Other("it does not speak TLS".into()),
        other => Refusal::Other(format!("TLS fails: {other}")),
    })
}

/// Whether the other end answered something else than TLS.
pub(crate) fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

/// See [`refusal`].
pub(crate) enum Refusal {
    /// The key of the other end follows from another token.
    Token,
    Other(String),
}

/// An encrypted connection.
pub(crate) struct TlsStream {
    connection: Connection,
    tcp: BufReader<TcpStream>,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("tcp", self.tcp()).finish_non_exhaustive()
    }
}

impl TlsStream {
    fn shake_hands(mut connection: Connection, tcp: TcpStream) -> io::Result<TlsStream> {
        connection.set_buffer_limit(Some(PENDING));
        while connection.is_handshaking() {
            connection.complete_io(&mut Socket(&tcp))?;
        }
        Ok(TlsStream { connection, tcp: BufReader::with_capacity(READ, tcp) })
    }

    pub fn tcp(&self) -> &TcpStream {
        self.tcp.get_ref()
    }

    /// Bytes that only the two ends know.
    pub fn secret(&self) -> io::Result<[u8; 32]> {
        self.connection.export_keying_material([0; 32], SECRET, None).map_err(io::Error::other)
    }

    /// Sends ciphertext until there is none.
    fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(self.tcp.get_ref())) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(to) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // A process that was ended closes its connection without a word, as without TLS.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            // The end of the connection is what the reader says next.
            self.connection.read_tls(&mut self.tcp)?;
            let processed = self.connection.process_new_packets();
            // An answer or an alert. What does not go now goes with the next bytes.
            let _ = self.send();
            processed.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.connection.writer().write_vectored(bytes)?;
        let sent = self.send();
        if written > 0 || bytes.iter().all(|bytes| bytes.is_empty()) {
            return match sent {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
                // What waits goes with `flush`.
                _ => Ok(written),
            };
        }
        // There was no room, and there is some where all was sent.
        sent.and_then(|()| self.connection.writer().write_vectored(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
