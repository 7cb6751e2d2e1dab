//! Elements narrower than a byte: packed in tensors, one to a byte where they are worked on.
//!
//! The first element is in the lowest bits of a byte, as in ONNX. A width divides 8.

/// The elements of `n * bits` packed bits, one to a byte, in the low bits.
pub fn unpack(bits: usize, n: usize, packed: &[u8]) -> Vec<u8> {
    let (per_byte, mask) = (8 / bits, mask(bits));
    packed.iter().flat_map(|b| (0..per_byte).map(move |i| b >> (i * bits) & mask)).take(n).collect()
}

/// The low bits of each byte, packed; the unused bits of the last byte are zero.
pub fn pack(bits: usize, cells: &[u8]) -> Vec<u8> {
    let mask = mask(bits);
    cells
        .chunks(8 / bits)
        .map(|c| c.iter().rev().fold(0u8, |byte, x| byte.unbounded_shl(bits as u32) | x & mask))
        .collect()
}

/// The low `bits` bits of a byte.
pub const fn mask(bits: usize) -> u8 {
    u8::MAX >> (8 - bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpack_inverts_pack() {
        for bits in [1, 2, 4, 8] {
            for n in 0..20u8 {
                let cells: Vec<u8> = (0..n).map(|i| i.wrapping_mul(37) & mask(bits)).collect();
                let packed = pack(bits, &cells);
                assert_eq!(packed.len(), (usize::from(n) * bits).div_ceil(8));
                assert_eq!(unpack(bits, n.into(), &packed), cells);
            }
        }
        assert_eq!(pack(2, &[1, 2, 3, 0, 3]), [0b00_11_10_01, 0b11]);
        assert_eq!(pack(4, &[0xf7, 0x2]), [0x27]);
    }
}
