// Tests of of_runtime.js: OF_WASM=FOLDER node --test bindings/js/test.mjs, where FOLDER is what `cargo xtask wasm` makes.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import path from "node:path";
import test from "node:test";

import { PlanError, Runtime, arrayOf } from "./of_runtime.js";

const folder = process.env.OF_WASM;
const module = await readFile(path.join(folder, "of_runtime.wasm"));
const plan = await readFile(path.join(folder, "digits.plan"));
const images = new Float32Array(8 * 64).map((_, i) => (i * 7919) % 17);
const refused = (status, text) => (error) =>
  error instanceof PlanError && error.status === status && error.message.includes(text);

test("ports have names and types", async () => {
  const session = (await Runtime.load(module)).open(plan);
  assert.deepEqual(session.inputs, [{ name: "image", type: "f32[N, 1, 8, 8]", dtype: 2 }]);
  assert.deepEqual(session.outputs, [{ name: "probability", type: "f32[N, 10]", dtype: 2 }]);
  assert.equal(arrayOf(2), Float32Array);
  assert.equal(arrayOf(20), undefined);
});

test("rows of a batch are those of single images", async () => {
  const session = (await Runtime.load(module)).open(plan);
  const all = session.run({ image: { dims: [8, 1, 8, 8], data: images } }).probability;
  assert.deepEqual([all.type, all.dims, all.data.length], ["f32", [8, 10], 80]);
  for (let i = 0; i < 8; i++) {
    const data = images.slice(64 * i, 64 * i + 64);
    const one = session.run({ image: { dims: [1, 1, 8, 8], data } }).probability;
    assert.deepEqual(one.dims, [1, 10]);
    one.data.forEach((value, k) => assert.ok(Math.abs(value - all.data[10 * i + k]) < 1e-6));
    assert.ok(Math.abs(one.data.reduce((a, b) => a + b) - 1) < 1e-5);
  }
});

test("what does not fit is refused, and the session still runs", async () => {
  const runtime = await Runtime.load(module);
  assert.throws(() => runtime.open(plan.subarray(0, 1000)), refused(3, ""));
  assert.throws(() => runtime.open(plan, { program: 3 }), refused(1, "3"));
  const damaged = Uint8Array.from(plan);
  damaged[damaged.length >> 1] ^= 1;
  assert.throws(() => runtime.open(damaged), refused(3, ""));
  const session = runtime.open(plan);
  const image = { dims: [1, 1, 8, 8], data: images.slice(0, 64) };
  assert.throws(() => session.run({}), refused(5, "'image' is missing"));
  assert.throws(() => session.run({ image, other: image }), refused(5, "no input 'other'"));
  assert.throws(() => session.run({ image: { ...image, data: new Float64Array(64) } }), refused(5, "Float32Array"));
  assert.throws(() => session.run({ image: { ...image, dims: [1, 1, 8, 9] } }), PlanError);
  assert.throws(() => session.run({ image: { ...image, dims: [64] } }), PlanError);
  assert.equal(session.run({ image }).probability.data.length, 10);
});

test("a kernel that the host refuses is named", async () => {
  const runtime = await Runtime.load(module);
  const { Module } = WebAssembly;
  const { error } = console;
  const said = [];
  try {
    console.error = (reason) => said.push(reason.message);
    WebAssembly.Module = class {
      constructor() {
        throw new WebAssembly.CompileError("no vectors");
      }
    };
    assert.throws(() => runtime.open(plan), refused(4, "the host refuses the module of kernel"));
  } finally {
    Object.assign(console, { error });
    WebAssembly.Module = Module;
  }
  assert.deepEqual(said, ["no vectors"]);
  assert.equal(runtime.open(plan).inputs.length, 1);
});

test("runs and freed sessions take no more memory", async () => {
  const runtime = await Runtime.load(module);
  const { memory, __indirect_function_table: table } = runtime.c;
  const round = () => {
    const session = runtime.open(plan);
    for (let i = 0; i < 20; i++) session.run({ image: { dims: [8, 1, 8, 8], data: images } });
    session.free();
  };
  round();
  round();
  const before = [memory.buffer.byteLength, table.length];
  for (let i = 0; i < 50; i++) round();
  assert.deepEqual([memory.buffer.byteLength, table.length], before);
});
