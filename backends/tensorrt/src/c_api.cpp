// TensorRT behind plain functions: its interface is C++ classes, whose methods only a C++ compiler can call.
//
// `cargo xtask tensorrt` compiles this file against NVIDIA's headers, those of TensorRT-RTX or of TensorRT itself, and writes
// the library next to theirs. All decisions are in src/ffi.rs, which calls it.
//
// Every function returns 0 on success; otherwise it has written an error message to the sink.
#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <algorithm>
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
  int (*device_count)(int *) = nullptr;
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

  // Empty where there is a GPU, else why there is none. Of several it is the one of this number, counted on from the first.
  std::string open(uint32_t number) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return std::string("there is no driver of CUDA: ") + dlerror();
    bool all = true;
    auto find = [&](auto &to, const char *name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
      all = all && to != nullptr;
    };
    find(init, "cuInit");
    find(device_count, "cuDeviceGetCount");
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
    int device = 0, devices = 0, major = 0, minor = 0;
    if (int e = init(0)) return "CUDA's driver does not start: error " + std::to_string(e);
    if (device_count(&devices) != 0 || devices == 0) return "there is no GPU";
    if (int e = device_get(&device, static_cast<int>(number % static_cast<uint32_t>(devices)))) {
      return "the GPU does not answer: error " + std::to_string(e);
    }
    constexpr int MAJOR = 75, MINOR = 76;
    attribute(&major, MAJOR, device);
    attribute(&minor, MINOR, device);
    arch = 10 * major + minor;
    if (int e = retain(&context, device)) return "the GPU gives no context: error " + std::to_string(e);
    return "";
  }
};

// An input or output as the caller describes it: its name, axes, and bytes of an element.
struct Port {
  const char *name;
  int32_t rank;
  uint32_t element;
};

// An input of open extents: the least, the usual and the largest, each of `rank`.
struct Profile {
  const char *name;
  int32_t rank;
  const int64_t *dims[3];
};

// What an engine is built of.
struct Request {
  const uint8_t *model;
  size_t model_len;
  // 90 for sm_90; none for the GPU that is there.
  const int32_t *archs;
  size_t arch_count;
  const Profile *profiles;
  size_t profile_count;
  // Whether f32 may be multiplied with ten bits of mantissa.
  uint32_t tf32;
  // Whether times of kernels are kept, and what was kept before.
  uint32_t keeps_times;
  const uint8_t *times;
  size_t times_len;
};

// Memory of an input or output, as large as the largest that there was.
struct Binding {
  std::string name;
  int32_t rank = 0;
  size_t element = 0;
  uint64_t memory = 0;
  size_t room = 0;
  size_t bytes = 0;
};

Dims dims_of(const int64_t *extents, int32_t rank) {
  Dims dims{};
  dims.nbDims = rank;
  std::copy(extents, extents + rank, dims.d);
  return dims;
}

struct Loaded {
  Log log;
  Cuda cuda;
  std::unique_ptr<IRuntime> runtime;
  std::unique_ptr<ICudaEngine> engine;
  std::unique_ptr<IExecutionContext> context;
  void *stream = nullptr;
  // Inputs, then outputs.
  std::vector<Binding> bindings;
  size_t inputs = 0;

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
uint32_t of_tensorrt_interface() { return 2; }

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

// An engine of a model. Where times are kept, those of this engine's kernels are written to `times`, with those that were there.
int of_tensorrt_build(const Request *request, Sink times, Sink out, Sink why) try {
  const Request &r = *request;
  Log log;
  std::unique_ptr<IBuilder> builder(createInferBuilder(log));
  if (!builder) return refuse(why, "no builder: " + log.said);
  std::unique_ptr<INetworkDefinition> network(builder->createNetworkV2(network_flags()));
  std::unique_ptr<nvonnxparser::IParser> parser(nvonnxparser::createParser(*network, log));
  if (!network || !parser) return refuse(why, "no parser: " + log.said);
  if (!parser->parse(r.model, r.model_len)) return refuse(why, parser_errors(*parser, log));
  std::unique_ptr<IBuilderConfig> config(builder->createBuilderConfig());
  if (r.tf32 != 0) config->setFlag(BuilderFlag::kTF32);
  else config->clearFlag(BuilderFlag::kTF32);
  if (r.profile_count > 0) {
    // The builder owns it.
    IOptimizationProfile *profile = builder->createOptimizationProfile();
    constexpr OptProfileSelector WHICH[] = {OptProfileSelector::kMIN, OptProfileSelector::kOPT, OptProfileSelector::kMAX};
    for (size_t i = 0; i < r.profile_count; i++) {
      const Profile &p = r.profiles[i];
      for (int k = 0; k < 3; k++) {
        if (!profile->setDimensions(p.name, WHICH[k], dims_of(p.dims[k], p.rank))) {
          return refuse(why, "'" + std::string(p.name) + "' does not take its range: " + log.said);
        }
      }
    }
    if (config->addOptimizationProfile(profile) < 0) return refuse(why, "its ranges are refused: " + log.said);
  }
#ifdef TRT_MAJOR_RTX
  // Kernels are compiled when an engine is loaded, and never timed.
  (void)times;
  if (!config->setNbComputeCapabilities(static_cast<int32_t>(r.arch_count))) return refuse(why, log.said);
  for (size_t i = 0; i < r.arch_count; i++) {
    if (!config->setComputeCapability(static_cast<ComputeCapability>(r.archs[i]), static_cast<int32_t>(i))) {
      return refuse(why, "sm_" + std::to_string(r.archs[i]) + ": " + log.said);
    }
  }
#else
  // Engines of TensorRT are for the GPU that builds them.
  std::unique_ptr<ITimingCache> kept;
  if (r.keeps_times != 0) {
    kept.reset(config->createTimingCache(r.times, r.times_len));
    // What another GPU took is of no use.
    if (!kept || !config->setTimingCache(*kept, false)) {
      kept.reset(config->createTimingCache(nullptr, 0));
      if (kept) config->setTimingCache(*kept, false);
    }
    log.said.clear();
  }
#endif
  std::unique_ptr<IHostMemory> engine(builder->buildSerializedNetwork(*network, *config));
  if (!engine) return refuse(why, log.said.empty() ? "the builder does not say why" : log.said);
  out.write(out.context, static_cast<const uint8_t *>(engine->data()), engine->size());
#ifndef TRT_MAJOR_RTX
  if (kept) {
    std::unique_ptr<IHostMemory> all(kept->serialize());
    if (all) times.write(times.context, static_cast<const uint8_t *>(all->data()), all->size());
  }
#endif
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// An engine ready to run on a GPU, once the extents of its inputs are bound. Of `count` ports the first are inputs.
int of_tensorrt_load(const uint8_t *engine, size_t len, uint32_t device, const Port *ports, size_t inputs, size_t count, void **to, Sink why) try {
  auto loaded = std::make_unique<Loaded>();
  const std::string none = loaded->cuda.open(device);
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
  loaded->inputs = inputs;
  for (size_t i = 0; i < count; i++) {
    if (loaded->engine->getTensorShape(ports[i].name).nbDims != ports[i].rank) {
      return refuse(why, "'" + std::string(ports[i].name) + "' is not of the engine: " + loaded->log.said);
    }
    Binding b;
    b.name = ports[i].name;
    b.rank = ports[i].rank;
    b.element = ports[i].element;
    loaded->bindings.push_back(b);
  }
  *to = loaded.release();
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// Says which extents the inputs of the next runs have, one input behind the other, and gives those of the outputs.
int of_tensorrt_reshape(void *executable, const int64_t *inputs, int64_t *outputs, Sink why) try {
  auto &l = *static_cast<Loaded *>(executable);
  l.cuda.set_current(l.cuda.context);
  l.log.said.clear();
  for (size_t i = 0; i < l.bindings.size(); i++) {
    auto &b = l.bindings[i];
    Dims dims;
    if (i < l.inputs) {
      dims = dims_of(inputs, b.rank);
      inputs += b.rank;
      if (!l.context->setInputShape(b.name.c_str(), dims)) {
        return refuse(why, "'" + b.name + "' is refused with its extents: " + l.log.said);
      }
    } else {
      dims = l.context->getTensorShape(b.name.c_str());
      if (dims.nbDims != b.rank) return refuse(why, "'" + b.name + "' gets no extents: " + l.log.said);
      outputs = std::copy(dims.d, dims.d + b.rank, outputs);
    }
    size_t bytes = b.element;
    for (int32_t a = 0; a < b.rank; a++) {
      if (dims.d[a] < 0) return refuse(why, "the extents of '" + b.name + "' are only known once it has run");
      bytes *= static_cast<size_t>(dims.d[a]);
    }
    b.bytes = bytes;
    if (bytes <= b.room && b.memory != 0) continue;
    if (b.memory != 0) l.cuda.free(b.memory);
    b.memory = 0;
    b.room = bytes == 0 ? 1 : bytes;
    if (int e = l.cuda.alloc(&b.memory, b.room)) {
      return refuse(why, "the GPU has no " + std::to_string(b.room) + " bytes for '" + b.name + "': error " + std::to_string(e));
    }
    if (!l.context->setTensorAddress(b.name.c_str(), reinterpret_cast<void *>(b.memory))) {
      return refuse(why, "'" + b.name + "' is not of the engine: " + l.log.said);
    }
  }
  return 0;
} catch (const std::exception &e) {
  return refuse(why, e.what());
}

// Runs it: inputs are read from, outputs written to host memory.
int of_tensorrt_run(void *executable, const uint8_t *const *inputs, size_t input_count, uint8_t *const *outputs, size_t output_count, Sink why) try {
  auto &l = *static_cast<Loaded *>(executable);
  l.cuda.set_current(l.cuda.context);
  l.log.said.clear();
  if (input_count != l.inputs || input_count + output_count != l.bindings.size()) return refuse(why, "the engine has other inputs and outputs");
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
