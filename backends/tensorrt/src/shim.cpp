// TensorRT behind plain functions: its interface is C++ classes, whose methods only a C++ compiler can call.
//
// `cargo xtask tensorrt` compiles this file against NVIDIA's headers, those of TensorRT-RTX or of TensorRT itself, and lays
// the library beside theirs. Nothing here decides anything: src/ffi.rs is the other side.
//
// Every function gives 0 where it did what it is for, else it has written why to the sink.
#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace nvinfer1;

struct Sink {
  void *context;
  void (*write)(void *context, const uint8_t *data, size_t len);
  void text(const std::string &s) const { write(context, reinterpret_cast<const uint8_t *>(s.data()), s.size()); }
};

int refuse(Sink why, const std::string &text) {
  why.text(text);
  return 1;
}

// What TensorRT says of its errors, the last of which is the reason.
struct Log final : ILogger {
  std::string said;
  void log(Severity severity, const char *text) noexcept override {
    if (severity > Severity::kERROR) return;
    try {
      if (!said.empty()) said += "; ";
      said += text;
    } catch (...) {
    }
  }
};

std::string parser_errors(const nvonnxparser::IParser &parser, const Log &log) {
  std::string out;
  for (int i = 0; i < parser.getNbErrors(); i++) {
    if (!out.empty()) out += "; ";
    const auto *e = parser.getError(i);
    out += std::string(e->desc());
    if (e->nodeName() != nullptr && e->nodeName()[0] != 0) out += " (node " + std::string(e->nodeName()) + ")";
  }
  return out.empty() ? (log.said.empty() ? "the parser does not say why" : log.said) : out;
}

uint32_t network_flags() {
  // Element types are those of the model: nothing is rounded that the model does not round.
  return 1u << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kSTRONGLY_TYPED);
}

// The part of CUDA's driver that moves tensors; opened where it is needed, so that engines are built without one.
struct Cuda {
  using Fn = int (*)(...);
  void *library = nullptr;
  int (*init)(unsigned) = nullptr;
  int (*device_get)(int *, int) = nullptr;
  int (*attribute)(int *, int, int) = nullptr;
  int (*retain)(void **, int) = nullptr;
  int (*set_current)(void *) = nullptr;
  int (*alloc)(uint64_t *, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
  int (*to_device)(uint64_t, const void *, size_t, void *) = nullptr;
  int (*to_host)(void *, uint64_t, size_t, void *) = nullptr;
  int (*stream_create)(void **, unsigned) = nullptr;
  int (*stream_destroy)(void *) = nullptr;
  int (*synchronize)(void *) = nullptr;
  void *context = nullptr;
  int arch = 0;

  // Empty where there is a GPU, else why there is none.
  std::string open() {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return std::string("there is no driver of CUDA: ") + dlerror();
    bool all = true;
    auto find = [&](auto &to, const char *name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
      all = all && to != nullptr;
    };
    find(init, "cuInit");
    find(device_get, "cuDeviceGet");
    find(attribute, "cuDeviceGetAttribute");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    find(alloc, "cuMemAlloc_v2");
    find(free, "cuMemFree_v2");
    find(to_device, "cuMemcpyHtoDAsync_v2");
    find(to_host, "cuMemcpyDtoHAsync_v2");
    find(stream_create, "cuStreamCreate");
    find(stream_destroy, "cuStreamDestroy_v2");
    find(synchronize, "cuStreamSynchronize");
    if (!all) return "CUDA's driver lacks a function";
    int device = 0, major = 0, minor = 0;
    if (int e = init(0)) return "CUDA's driver does not start: error " + std::to_string(e);
    if (device_get(&device, 0) != 0) return "there is no GPU";
    constexpr int MAJOR = 75, MINOR = 76;
    attribute(&major, MAJOR, device);
    attribute(&minor, MINOR, device);
    arch = 10 * major + minor;
    if (int e = retain(&context, device)) return "the GPU gives no context: error " + std::to_string(e);
    return "";
  }
};

struct Binding {
  std::string name;
  uint64_t memory = 0;
  size_t bytes = 0;
};

struct Loaded {
  Log log;
  Cuda cuda;
  std::unique_ptr<IRuntime> runtime;
  std::unique_ptr<ICudaEngine> engine;
  std::unique_ptr<IExecutionContext> context;
  void *stream = nullptr;
  std::vector<Binding> bindings;

  ~Loaded() {
    context.reset();
    for (auto &b : bindings) {
      if (b.memory != 0) cuda.free(b.memory);
    }
    if (stream != nullptr) cuda.stream_destroy(stream);
  }
};

} // namespace

extern "C" {

// Version of these functions.
uint32_t of_tensorrt_interface() { return 1; }

// The version of TensorRT that engines are for: they run on no other.
void of_tensorrt_version(Sink out) {
#ifdef TRT_MAJOR_RTX
  out.text("TensorRT-RTX " + std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR) + "." +
           std::to_string(NV_TENSORRT_PATCH));
#else
  out.text("TensorRT " + std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR) + "." +
           std::to_string(NV_TENSORRT_PATCH));
#endif
}

// Whether a model is one that TensorRT takes.
int of_tensorrt_parse(const uint8_t *model, size_t len, Sink why) try {
  Log log;
  std::unique_ptr<IBuilder> builder(createInferBuilder(log));
  if (!builder) return refuse(why, "no builder: " + log.said);
  std::unique_ptr<INetworkDefinition> network(builder->createNetworkV2(network_flags()));
  std::unique_ptr<nvonnxparser::IParser> parser(nvonnxparser::createParser(*network, log));
  if (!network || !parser) return refuse(why, "no parser: " + log.said);
  if (!parser->parse(model, len)) return refuse(why, parser_errors(*parser, log));
  for (int i = 0; i < network->getNbInputs(); i++) {
    const auto *input = network->getInput(i);
    if (input->isShapeTensor()) {
      return refuse(why, "'" + std::string(input->getName()) + "' is read as a shape, which must be known when the engine is built");
    }
  }
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// An engine of a model, for GPUs of these architectures (sm_90 is 90); none for the one that is there.
int of_tensorrt_build(const uint8_t *model, size_t len, const int32_t *archs, size_t count, uint32_t tf32, Sink out, Sink why) try {
  Log log;
  std::unique_ptr<IBuilder> builder(createInferBuilder(log));
  if (!builder) return refuse(why, "no builder: " + log.said);
  std::unique_ptr<INetworkDefinition> network(builder->createNetworkV2(network_flags()));
  std::unique_ptr<nvonnxparser::IParser> parser(nvonnxparser::createParser(*network, log));
  if (!network || !parser) return refuse(why, "no parser: " + log.said);
  if (!parser->parse(model, len)) return refuse(why, parser_errors(*parser, log));
  std::unique_ptr<IBuilderConfig> config(builder->createBuilderConfig());
  if (tf32 != 0) config->setFlag(BuilderFlag::kTF32);
  else config->clearFlag(BuilderFlag::kTF32);
#ifdef TRT_MAJOR_RTX
  if (!config->setNbComputeCapabilities(static_cast<int32_t>(count))) return refuse(why, log.said);
  for (size_t i = 0; i < count; i++) {
    if (!config->setComputeCapability(static_cast<ComputeCapability>(archs[i]), static_cast<int32_t>(i))) {
      return refuse(why, "sm_" + std::to_string(archs[i]) + ": " + log.said);
    }
  }
#else
  // Engines of TensorRT are for the GPU that builds them.
  (void)archs;
  (void)count;
#endif
  std::unique_ptr<IHostMemory> engine(builder->buildSerializedNetwork(*network, *config));
  if (!engine) return refuse(why, log.said.empty() ? "the builder does not say why" : log.said);
  out.write(out.context, static_cast<const uint8_t *>(engine->data()), engine->size());
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// An engine ready to run on the first GPU. Inputs, then outputs, are named and have so many bytes each.
int of_tensorrt_load(const uint8_t *engine, size_t len, const char *const *names, const size_t *bytes, size_t count, void **to, Sink why) try {
  auto loaded = std::make_unique<Loaded>();
  const std::string none = loaded->cuda.open();
  if (!none.empty()) return refuse(why, none);
  auto &cuda = loaded->cuda;
  cuda.set_current(cuda.context);
  loaded->runtime.reset(createInferRuntime(loaded->log));
  if (!loaded->runtime) return refuse(why, "no runtime: " + loaded->log.said);
  loaded->engine.reset(loaded->runtime->deserializeCudaEngine(engine, len));
  if (!loaded->engine) return refuse(why, "sm_" + std::to_string(cuda.arch) + " does not take the engine: " + loaded->log.said);
  loaded->context.reset(loaded->engine->createExecutionContext());
  if (!loaded->context) return refuse(why, "no context: " + loaded->log.said);
  if (cuda.stream_create(&loaded->stream, 1) != 0) return refuse(why, "the GPU gives no stream");
  for (size_t i = 0; i < count; i++) {
    Binding b{names[i], 0, bytes[i]};
    if (int e = cuda.alloc(&b.memory, bytes[i] == 0 ? 1 : bytes[i])) {
      return refuse(why, "the GPU has no " + std::to_string(bytes[i]) + " bytes for '" + b.name + "': error " + std::to_string(e));
    }
    loaded->bindings.push_back(b);
    if (!loaded->context->setTensorAddress(names[i], reinterpret_cast<void *>(b.memory))) {
      return refuse(why, "'" + b.name + "' is not of the engine: " + loaded->log.said);
    }
  }
  *to = loaded.release();
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// Runs it: inputs are read from, outputs written to host memory.
int of_tensorrt_run(void *executable, const uint8_t *const *inputs, size_t input_count, uint8_t *const *outputs, size_t output_count, Sink why) try {
  auto &l = *static_cast<Loaded *>(executable);
  l.cuda.set_current(l.cuda.context);
  l.log.said.clear();
  if (input_count + output_count != l.bindings.size()) return refuse(why, "the engine has other inputs and outputs");
  for (size_t i = 0; i < input_count; i++) {
    if (int e = l.cuda.to_device(l.bindings[i].memory, inputs[i], l.bindings[i].bytes, l.stream)) {
      return refuse(why, "an input does not reach the GPU: error " + std::to_string(e));
    }
  }
  if (!l.context->enqueueV3(static_cast<cudaStream_t>(l.stream))) return refuse(why, "it does not run: " + l.log.said);
  for (size_t i = 0; i < output_count; i++) {
    const auto &b = l.bindings[input_count + i];
    if (int e = l.cuda.to_host(outputs[i], b.memory, b.bytes, l.stream)) {
      return refuse(why, "an output does not come back: error " + std::to_string(e));
    }
  }
  if (int e = l.cuda.synchronize(l.stream)) return refuse(why, "it failed on the GPU: error " + std::to_string(e));
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

void of_tensorrt_unload(void *executable) { delete static_cast<Loaded *>(executable); }
}
