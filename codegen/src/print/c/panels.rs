//! Packing of matrices into panels.

use std::fmt::Write;

use crate::isa::Isa;
use crate::kernel::extent::Extent;
use crate::print::c::copy::transpose_tile;

/// Prints the packing of a matrix of `columns` by `depth` elements into panels of `width` columns, with zero columns at the end.
/// `column` and `step` are the strides of columns and of their elements. With `many` of 2, elements are pairs of 16-bit floats,
/// and an odd last element is paired with zero.
pub fn columns_to_panels(
    (from, to): (&str, &str),
    (column, step): (&Extent, &Extent),
    (columns, depth, width): (usize, usize, usize),
    many: usize,
    isa: &Isa,
    c: &mut String,
) {
    let lanes = isa.lanes;
    // From here on in words: a float, or a pair.
    let words = depth.div_ceil(many);
    let offset = format!("n / {width} * {} + n % {width}", words * width);
    let (whole, deep) = (columns / lanes * lanes, depth / many / lanes * lanes);
    // Start of the remainder that is packed element by element: columns, and words of the other columns.
    let (mut n0, mut d0) = (0, 0);
    let _ = writeln!(c, "      f32 *const panels = (f32 *){to};");
    if step.is(1) {
        let _ =
            writeln!(c, "      for (i64 n = 0; n < {whole}; n += LANES) for (i64 d = 0; d < {deep}; d += LANES) {{");
        let _ = writeln!(c, "          const f32 *p = (const f32 *)({from} + n * {column}) + d;");
        let _ = writeln!(c, "          f32 *q = panels + {offset} + d * {width};");
        transpose_tile(&column.div_floor(&many.into()), &width.into(), lanes, c);
        c.push_str("      }\n");
        (n0, d0) = (whole, deep);
    } else if column.is(1) {
        let full = depth / many;
        let _ = writeln!(c, "      for (i64 d = 0; d < {full}; d++) for (i64 n = 0; n < {whole}; n += LANES)");
        let word = match many {
            1 => format!("load({from} + n + d * {step})"),
            _ => format!("(vf)load_pair({from} + n + 2 * d * {step}, {step})"),
        };
        let _ = writeln!(c, "          store(panels + {offset} + d * {width}, {word});");
        (n0, d0) = (whole, full);
    }
    let each = match many {
        1 => format!("panels[{offset} + d * {width}] = {from}[n * {column} + d * {step}]"),
        _ => {
            let pair = format!(
                "{{ const bf16 *p = {from} + n * {column}; {to}[2 * ({offset} + d * {width})] = LOW; {to}[2 * ({offset} + d * {width}) + 1] = HIGH; }}"
            );
            let low = format!("p[2 * d * {step}]");
            let high = match depth.is_multiple_of(2) {
                true => format!("p[(2 * d + 1) * {step}]"),
                false => format!("d < {} ? p[(2 * d + 1) * {step}] : 0", depth / 2),
            };
            pair.replace("LOW", &low).replace("HIGH", &high)
        }
    };
    if d0 < words && n0 > 0 {
        let _ = writeln!(c, "      for (i64 d = {d0}; d < {words}; d++) for (i64 n = 0; n < {n0}; n++) {each};");
    }
    if n0 < columns {
        let _ = writeln!(c, "      for (i64 d = 0; d < {words}; d++) for (i64 n = {n0}; n < {columns}; n++) {each};");
    }
    let end = columns.next_multiple_of(width);
    if columns < end {
        let _ = writeln!(
            c,
            "      for (i64 d = 0; d < {words}; d++) for (i64 n = {columns}; n < {end}; n++) panels[{offset} + d * {width}] = 0;"
        );
    }
}
