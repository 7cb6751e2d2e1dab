//! What rank 0 tells its workers, as bytes. All numbers are little endian.

use std::borrow::Cow;
use std::io::{self, Read};

use of_plan::ElementType;
use of_runtime::{Tensor, Value};

use crate::wire::read_u32;

/// What comes next.
#[derive(Debug, PartialEq)]
pub enum Command<'a> {
    /// A run on these inputs.
    Run(Cow<'a, [Value]>),
    /// The value of a variable, by its number.
    Get(u32),
    /// A new value of a variable.
    Set(u32, Tensor),
    /// The initial values of all variables.
    Reset,
    /// The end of the session.
    End,
}

const RUN: u8 = 0;
const GET: u8 = 1;
const SET: u8 = 2;
const RESET: u8 = 3;
const END: u8 = 4;

/// More dimensions than tensors have.
const MAX_RANK: u32 = 64;

impl Command<'_> {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Command::Run(inputs) => {
                let tensors: Vec<&Tensor> = inputs.iter().filter_map(Value::as_tensor).collect();
                let mut out = vec![RUN];
                out.extend((tensors.len() as u32).to_le_bytes());
                tensors.into_iter().for_each(|tensor| write_tensor(&mut out, tensor));
                out
            }
            Command::Get(index) => [&[GET][..], &index.to_le_bytes()].concat(),
            Command::Set(index, tensor) => {
                let mut out = [&[SET][..], &index.to_le_bytes()].concat();
                write_tensor(&mut out, tensor);
                out
            }
            Command::Reset => vec![RESET],
            Command::End => vec![END],
        }
    }

    /// # Errors
    /// When the bytes are no command.
    pub fn decode(mut bytes: &[u8]) -> io::Result<Command<'static>> {
        let mut kind = [0];
        bytes.read_exact(&mut kind)?;
        Ok(match kind[0] {
            RUN => {
                let count = read_u32(&mut bytes)?;
                let inputs = (0..count).map(|_| read_tensor(&mut bytes).map(Value::from));
                Command::Run(Cow::Owned(inputs.collect::<io::Result<_>>()?))
            }
            GET => Command::Get(read_u32(&mut bytes)?),
            SET => Command::Set(read_u32(&mut bytes)?, read_tensor(&mut bytes)?),
            RESET => Command::Reset,
            END => Command::End,
            _ => return Err(damaged()),
        })
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a command is damaged")
}

/// A tensor: element type, extents, length and bytes. Meshes have no inputs of text.
fn write_tensor(out: &mut Vec<u8>, tensor: &Tensor) {
    let bytes = tensor.bytes().unwrap_or_default();
    out.extend((tensor.dtype() as u32).to_le_bytes());
    out.extend((tensor.dims().len() as u32).to_le_bytes());
    tensor.dims().iter().for_each(|extent| out.extend(extent.to_le_bytes()));
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn read_tensor(from: &mut &[u8]) -> io::Result<Tensor> {
    let dtype = ElementType::try_from(read_u32(from)? as i32).map_err(|_| damaged())?;
    let rank = read_u32(from)?;
    if rank > MAX_RANK {
        return Err(damaged());
    }
    let dims = (0..rank).map(|_| read_u64(from).map(u64::cast_signed)).collect::<io::Result<Vec<i64>>>()?;
    let len = usize::try_from(read_u64(from)?).map_err(|_| damaged())?;
    let (bytes, rest) = from.split_at_checked(len).ok_or_else(damaged)?;
    *from = rest;
    Tensor::from_bytes(dtype, dims, bytes).map_err(|_| damaged())
}

fn read_u64(from: &mut &[u8]) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_and_damaged_ones_are_errors() {
        let tensor = Tensor::from_elements(vec![2, 3], &[1.0f32, -2.0, 3.5, 0.0, 5.0, 6.0]).unwrap();
        let empty = Tensor::from_elements(vec![0], &[0i64; 0]).unwrap();
        let inputs = vec![Value::from(tensor.clone()), Value::from(empty)];
        let commands =
            [Command::Run(inputs.into()), Command::Get(3), Command::Set(1, tensor), Command::Reset, Command::End];
        for command in commands {
            let bytes = command.encode();
            assert_eq!(Command::decode(&bytes).unwrap(), command);
            for len in 0..bytes.len() {
                assert!(Command::decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
            }
        }
        assert!(Command::decode(&[9]).is_err());
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..80)).map(|_| rng.u8(..)).collect();
            // Whatever it says, it is read without a panic.
            let _ = Command::decode(&bytes);
        }
    }
}
