// Recognizes handwritten digits in Node.js: runs the plan of examples/digits/digits.onnx, compiled for WebAssembly.
//
//   cargo xtask wasm
//   node examples/js/digits.mjs target/wasm examples/digits/images.npy
import { readFile } from "node:fs/promises";
import path from "node:path";

import { Runtime } from "../../bindings/js/of_runtime.js";

const [folder, imagesPath] = process.argv.slice(2);
if (imagesPath === undefined) {
  console.error("usage: node digits.mjs FOLDER IMAGES.npy");
  process.exit(2);
}
const runtime = await Runtime.load(await readFile(path.join(folder, "of_runtime.wasm")));
const session = runtime.open(await readFile(path.join(folder, "digits.plan")));
for (const { name, type } of session.inputs) console.log(`input ${name}: ${type}`);
for (const { name, type } of session.outputs) console.log(`output ${name}: ${type}`);

// Eight images of 64 pixels at the end of a .npy file.
const file = await readFile(imagesPath);
const pixels = new Float32Array(file.buffer.slice(file.byteOffset + file.length - 4 * 8 * 64, file.byteOffset + file.length));
const { probability } = session.run({ image: { dims: [8, 1, 8, 8], data: pixels } });
const rows = Array.from({ length: 8 }, (_, row) => probability.data.subarray(10 * row, 10 * row + 10));
console.log("digits:", rows.map((row) => row.indexOf(Math.max(...row))).join(" "));
session.free();
