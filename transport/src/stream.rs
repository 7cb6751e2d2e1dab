//! A connection to another rank: bytes in order, plain, encrypted, or as messages of MPI.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use crate::mpi::MpiStream;
use crate::tls::TlsStream;

/// A connection to another rank.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    Mpi(MpiStream),
}

impl Stream {
    /// The connection of the system, to wait for and to set up; MPI has none.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Tls(stream) => Some(stream.tcp()),
            Stream::Mpi(_) => None,
        }
    }

    /// Bytes that only both ends of an encrypted connection know.
    ///
    /// # Errors
    /// When the connection is not set up.
    pub fn channel_secret(&self) -> io::Result<Option<[u8; 32]>> {
        match self {
            Stream::Tls(stream) => stream.secret().map(Some),
            Stream::Plain(_) | Stream::Mpi(_) => Ok(None),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(to),
            Stream::Tls(stream) => stream.read(to),
            Stream::Mpi(stream) => stream.read(to),
        }
    }

    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read_vectored(to),
            Stream::Tls(stream) => stream.read_vectored(to),
            Stream::Mpi(stream) => stream.read_vectored(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write_vectored(bytes),
            Stream::Tls(stream) => stream.write_vectored(bytes),
            Stream::Mpi(stream) => stream.write_vectored(bytes),
        }
    }

    /// Sends what is buffered. A stream that does not block may have to be flushed again.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Mpi(stream) => stream.flush(),
        }
    }
}
