//! Kernels one by one, on one thread. Items are floating-point operations, so that their rate is FLOP/s; where there are
//! none worth counting, bytes that must be read and written at least.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use of_bench::Kernel;

fn main() {
    divan::main();
}

/// Measures the kernel of a function with these inputs and this body, whose last value is `%y`.
fn kernel(inputs: &str, result: &str, body: &str) -> Kernel {
    let text = format!("func @main({inputs}) -> (tensor<{result}>) {{\n{body}\n  of.return %y\n}}");
    Kernel::new(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn flops(bencher: Bencher<'_, '_>, count: usize, mut kernel: Kernel) {
    bencher.counter(ItemsCount::new(count)).bench_local(|| kernel.run());
}

fn bytes(bencher: Bencher<'_, '_>, count: usize, mut kernel: Kernel) {
    bencher.counter(BytesCount::new(count)).bench_local(|| kernel.run());
}

/// What products multiply.
trait Number {
    /// Its name in the text form.
    const NAME: &str;
}

struct F32;
struct Bf16;

impl Number for F32 {
    const NAME: &str = "f32";
}

impl Number for Bf16 {
    const NAME: &str = "bf16";
}

/// Rows, depth and columns of products with weights.
#[divan::bench(types = [F32, Bf16], args = [(1, 768, 3072), (8, 768, 768), (128, 768, 768), (128, 3072, 768), (197, 768, 3072), (1024, 1024, 1024)])]
fn matmul<T: Number>(bencher: Bencher<'_, '_>, (m, k, n): (usize, usize, usize)) {
    let t = T::NAME;
    // A splat in text has at most a million elements; a concatenation of splats is folded.
    let parts = (k * n).div_ceil(1 << 20);
    let (list, height) = (vec!["%p"; parts].join(", "), k / parts);
    let body = format!(
        "  %p = of.constant {{value = dense<0.5> : tensor<{height}x{n}x{t}>}}\n  \
         %w = of.concat {list} {{axis = 0}}\n  %y = of.matmul %x, %w"
    );
    flops(bencher, 2 * m * k * n, kernel(&format!("%x: tensor<{m}x{k}x{t}>"), &format!("{m}x{n}x{t}"), &body));
}

/// Heads, length and size: both products of an attention and the softmax between them.
#[divan::bench(types = [F32, Bf16], args = [(12, 128, 64), (12, 197, 64)])]
fn attention<T: Number>(bencher: Bencher<'_, '_>, (heads, length, size): (usize, usize, usize)) {
    let t = T::NAME;
    let ty = format!("{heads}x{length}x{size}x{t}");
    let inputs = format!("%q: tensor<{ty}>, %k: tensor<{heads}x{size}x{length}x{t}>, %v: tensor<{ty}>");
    let body = "  %s = of.matmul %q, %k\n  %p = of.softmax %s {axis = -1}\n  %y = of.matmul %p, %v";
    flops(bencher, 4 * heads * length * length * size, kernel(&inputs, &ty, body));
}

/// Image size, channels in and out, filter size, groups.
#[divan::bench(types = [F32, Bf16], args = [(56, 64, 64, 3, 1), (14, 256, 256, 3, 1), (14, 1024, 256, 1, 1), (56, 144, 144, 3, 144), (28, 256, 256, 3, 32)])]
fn conv<T: Number>(
    bencher: Bencher<'_, '_>,
    (side, cin, cout, kernel_size, groups): (usize, usize, usize, usize, usize),
) {
    let t = T::NAME;
    let (pad, depth) = (kernel_size / 2, cin / groups);
    let body = format!(
        "  %w = of.constant {{value = dense<0.5> : tensor<{cout}x{depth}x{kernel_size}x{kernel_size}x{t}>}}\n  \
         %none = of.none\n  %y = of.conv %x, %w, %none {{strides = [1, 1], pads = [{pad}, {pad}, {pad}, {pad}], \
         dilations = [1, 1], group = {groups}, auto_pad = \"NOTSET\", channels_last = true}}"
    );
    let (from, to) = (format!("1x{side}x{side}x{cin}x{t}"), format!("1x{side}x{side}x{cout}x{t}"));
    let count = 2 * side * side * cout * depth * kernel_size * kernel_size;
    flops(bencher, count, kernel(&format!("%x: tensor<{from}>"), &to, &body));
}

/// Rows and their length.
#[divan::bench(args = [(1536, 128), (128, 768), (16, 50257)])]
fn softmax(bencher: Bencher<'_, '_>, (rows, length): (usize, usize)) {
    let ty = format!("{rows}x{length}xf32");
    bytes(bencher, 8 * rows * length, kernel(&format!("%x: tensor<{ty}>"), &ty, "  %y = of.softmax %x {axis = -1}"));
}

/// Rows and their length.
#[divan::bench(args = [(128, 768), (2048, 1024)])]
fn layer_norm(bencher: Bencher<'_, '_>, (rows, length): (usize, usize)) {
    let ty = format!("{rows}x{length}xf32");
    let body = format!(
        "  %s = of.constant {{value = dense<0.5> : tensor<{length}xf32>}}\n  \
         %y = of.layer_norm %x, %s, %s {{axis = -1, epsilon = 1.0e-5, return_stats = false}}"
    );
    bytes(bencher, 8 * rows * length, kernel(&format!("%x: tensor<{ty}>"), &ty, &body));
}

/// Elements.
#[divan::bench(args = [98_304, 4_194_304])]
fn gelu(bencher: Bencher<'_, '_>, n: usize) {
    let ty = format!("{n}xf32");
    bytes(bencher, 8 * n, kernel(&format!("%x: tensor<{ty}>"), &ty, "  %y = of.gelu %x {tanh = false}"));
}

/// Rows and columns.
#[divan::bench(args = [(768, 768), (2048, 4096)])]
fn transpose(bencher: Bencher<'_, '_>, (rows, columns): (usize, usize)) {
    let (from, to) = (format!("{rows}x{columns}xf32"), format!("{columns}x{rows}xf32"));
    let body = "  %y = of.transpose %x {perm = [1, 0]}";
    bytes(bencher, 8 * rows * columns, kernel(&format!("%x: tensor<{from}>"), &to, body));
}
