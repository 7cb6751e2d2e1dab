//! TLS, and clients that must have a certificate. The certificates of `data/` are valid for a hundred years; the key
//! that signed them was not kept.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{options, repository, start};
use of_serving::{Server, ServerOptions, TlsOptions};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/data").join(name)
}

fn secured(dir: &Path, client_ca: bool) -> ServerOptions {
    let client_ca = client_ca.then(|| data("ca.pem"));
    let tls = TlsOptions { certificate: data("server.pem"), key: data("server.key.pem"), client_ca };
    ServerOptions { tls: Some(tls), ..options(&[dir]) }
}

/// The first line of the answer to a request.
fn ask(server: &Server, with_certificate: bool) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match with_certificate {
        false => builder.with_no_client_auth(),
        true => {
            let certificate = CertificateDer::from_pem_file(data("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(data("client.key.pem")).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(server.addresses().http.unwrap())?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(b"GET /v2/models/digits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn requests_are_answered_over_tls() {
    let dir = repository();
    let server = start(secured(dir.path(), false));
    assert_eq!(ask(&server, false).unwrap(), "HTTP/1.1 200 OK");
    let mut plain = crate::common::Client::new(&server);
    assert!(plain.send("GET", "/v2", &[], b"").is_err(), "not without TLS");
}

#[test]
fn clients_need_a_certificate_where_they_must_have_one() {
    let dir = repository();
    let server = start(secured(dir.path(), true));
    assert_eq!(ask(&server, true).unwrap(), "HTTP/1.1 200 OK");
    let refused = ask(&server, false).unwrap_err().to_string();
    assert!(refused.to_lowercase().contains("certificate"), "{refused}");
}

#[test]
fn files_that_hold_no_certificate_are_refused_at_the_start() {
    let dir = repository();
    for (certificate, key, what) in [
        ("server.key.pem", "server.key.pem", "holds no certificates"),
        ("server.pem", "server.pem", "holds no private key"),
        ("none.pem", "server.key.pem", "none.pem"),
        ("server.pem", "client.key.pem", "cannot be used"),
    ] {
        let tls = TlsOptions { certificate: data(certificate), key: data(key), client_ca: None };
        let options = ServerOptions { tls: Some(tls), ..options(&[dir.path()]) };
        let error = Server::start(options, crate::common::opener()).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
}
