#include "tools/train/checkpoint_files.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>

namespace mantissa {
namespace {

// Suffixes of tensor names: the parts of a piece of optimizer state.
constexpr const char *kMaster = "/master", *kWeight = "/weight", *kCompensation = "/compensation";
constexpr const char *kFirstMoment = "/m", *kFirstAbsmax = "/m_absmax";
constexpr const char *kSecondMoment = "/v", *kSecondAbsmax = "/v_absmax";
constexpr const char* kResidual = "/residual";  // of a parameter in a lane

constexpr const char* kScale = "/scale";
constexpr const char* kAmaxes = "/amaxes";

std::vector<std::byte> download(const Tensor& tensor, Backend& backend, Stream& stream) {
  std::vector<std::byte> bytes(tensor.size_bytes());
  backend.download(tensor, bytes.data(), stream);
  return bytes;
}

void write_tensors(ByteSink& sink, const std::map<std::string, Tensor>& tensors, Backend& backend, Stream& stream) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [key, tensor] : tensors) {
    entries.push_back(
        {.name = key, .dtype = std::string(safetensors_name(tensor.dtype())), .shape = tensor.shape().extents()});
  }
  SafetensorsWriter writer(sink, std::move(entries));
  for (const SafetensorsEntry& entry : writer.order()) {
    writer.append(entry.name, download(tensors.at(entry.name), backend, stream));
  }
  writer.finish();
}

// Values of a stored tensor, converted to Value: float or double.
template <typename Value = float>
std::vector<Value> as_floats(const SafetensorsReader& reader, const SafetensorsEntry& entry) {
  const auto dtype = parse_safetensors_dtype(entry.dtype);
  require<CheckpointError>(dtype && is_floating(*dtype), "{}: tensor '{}' is {}, expected F64, F32, BF16 or F16",
                           reader.path(), entry.name, entry.dtype);
  const auto bytes = reader.bytes(entry);
  return dispatch_with_fp64(*dtype, [&]<typename T>() {
    std::vector<Value> values(bytes.size() / sizeof(T));
    for (size_t index = 0; index < values.size(); ++index) {
      T stored;
      std::memcpy(&stored, bytes.data() + index * sizeof(T), sizeof(T));
      if constexpr (std::is_same_v<T, double>) {
        values[index] = static_cast<Value>(stored);
      } else {
        values[index] = static_cast<Value>(to_float(stored));
      }
    }
    return values;
  });
}

std::vector<float> read_optional(const SafetensorsReader& reader, const std::string& name) {
  const SafetensorsEntry* const entry = reader.find(name);
  return entry == nullptr ? std::vector<float>() : as_floats(reader, *entry);
}

// Values, or codes with their scales.
struct StoredMoment {
  std::vector<float> values{};
  std::vector<uint8_t> codes{};
  std::vector<float> absmax{};

  MomentValues view() const { return {values, codes, absmax}; }
};

StoredMoment read_moment(const SafetensorsReader& reader, const std::string& name, const std::string& absmax) {
  const SafetensorsEntry& entry = reader.at(name);
  if (parse_safetensors_dtype(entry.dtype) != DType::kU8) return {.values = as_floats(reader, entry)};
  StoredMoment moment{.absmax = as_floats(reader, reader.at(absmax))};
  for (const std::byte code : reader.bytes(entry)) moment.codes.push_back(static_cast<uint8_t>(code));
  return moment;
}

// "blocks.0.mlp.up.weight/4096/master" without its last part, taken apart.
struct PieceName {
  std::string parameter;
  int64_t begin = 0;
};

PieceName parse_piece(const std::string& path, std::string_view stem) {
  const size_t slash = stem.rfind('/');
  PieceName piece;
  if (slash != std::string_view::npos) {
    const char* end = stem.data() + stem.size();
    const auto parsed = std::from_chars(stem.data() + slash + 1, end, piece.begin);
    piece.parameter = stem.substr(0, slash);
    if (parsed.ec == std::errc() && parsed.ptr == end) return piece;
  }
  throw CheckpointError(
      fmt::format("{}: '{}' is not a piece of optimizer state (parameter/first element)", path, stem));
}

std::string name_of(const LaneResidual& residual) {
  return fmt::format("{}/{}{}", residual.parameter->name, residual.lane, kResidual);
}

std::map<std::string, Tensor> named_tensors(const std::vector<StatePiece>& pieces,
                                            const std::vector<LaneResidual>& residuals) {
  std::map<std::string, Tensor> tensors;
  for (const StatePiece& piece : pieces) {
    const std::string stem = fmt::format("{}/{}", piece.parameter->name, piece.begin);
    for (const auto& [role, tensor] : {std::pair(kMaster, piece.master),
                                       {kWeight, piece.weight},
                                       {kCompensation, piece.compensation},
                                       {kFirstMoment, piece.m},
                                       {kFirstAbsmax, piece.m_absmax},
                                       {kSecondMoment, piece.v},
                                       {kSecondAbsmax, piece.v_absmax}}) {
      if (tensor.defined()) tensors.emplace(stem + role, tensor);
    }
  }
  for (const LaneResidual& residual : residuals) tensors.emplace(name_of(residual), residual.values);
  return tensors;
}

// A piece of fp64 state, for fp64 state: no value is rounded.
void load_doubles(const SafetensorsReader& reader, const SafetensorsEntry& weights, StateValues piece,
                  const std::string& stem, ShardedOptimizer& optimizer) {
  const std::vector<double> values = as_floats<double>(reader, weights),
                            m = as_floats<double>(reader, reader.at(stem + kFirstMoment)),
                            v = as_floats<double>(reader, reader.at(stem + kSecondMoment));
  require<CheckpointError>(m.size() == values.size() && v.size() == values.size(),
                           "{}: '{}' has {} weights, {} first and {} second moments", reader.path(), stem,
                           values.size(), m.size(), v.size());
  piece.doubles = {.weights = values, .m = m, .v = v};
  optimizer.load(piece);
}

}  // namespace

void write_optimizer_pieces(ByteSink& sink, const std::vector<StatePiece>& pieces,
                            const std::vector<LaneResidual>& residuals, Backend& backend, Stream& stream) {
  write_tensors(sink, named_tensors(pieces, residuals), backend, stream);
}

uint64_t optimizer_file_bytes(const ShardedState& state) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : named_tensors(state.optimizer.pieces(), state.reducer.residuals())) {
    bytes += tensor.size_bytes();
  }
  return bytes;
}

void load_optimizer_pieces(const SafetensorsReader& reader, ShardedState& state) {
  const std::string& path = reader.path();
  const ParameterSet& parameters = state.parameters();
  ShardedOptimizer& optimizer = state.optimizer;
  for (const SafetensorsEntry& entry : reader.entries()) {
    const size_t slash = entry.name.rfind('/');
    const std::string role = slash == std::string::npos ? "" : entry.name.substr(slash);
    if (role != kMaster && role != kWeight) continue;
    const std::string stem = entry.name.substr(0, slash);
    const PieceName piece = parse_piece(path, stem);
    const Parameter* parameter = parameters.find(piece.parameter);
    require<CheckpointError>(parameter != nullptr, "{}: this model has no parameter '{}'", path, piece.parameter);
    // Pieces of other ranks are not read: there are as many files as ranks.
    const int64_t elements = static_cast<int64_t>(entry.size_bytes()) / safetensors_item_bytes(entry.dtype).value_or(1);
    if (!optimizer.needs(parameter->index, piece.begin, elements)) continue;
    if (entry.dtype == safetensors_name(DType::kF64) && parameter->working_dtype == DType::kF64) {
      load_doubles(reader, entry, {.parameter = parameter->index, .begin = piece.begin}, stem, optimizer);
      continue;
    }
    const std::vector<float> weights = as_floats(reader, entry);
    const std::vector<float> compensation = read_optional(reader, stem + kCompensation);
    const StoredMoment m = read_moment(reader, stem + kFirstMoment, stem + kFirstAbsmax),
                       v = read_moment(reader, stem + kSecondMoment, stem + kSecondAbsmax);
    const size_t count = weights.size();
    if (m.view().size() != count || v.view().size() != count ||
        (!compensation.empty() && compensation.size() != count)) {
      throw CheckpointError(fmt::format("{}: '{}' has {} weights, {} compensations, {} first and {} second moments",
                                        path, stem, count, compensation.size(), m.view().size(), v.view().size()));
    }
    optimizer.load({.parameter = parameter->index,
                    .begin = piece.begin,
                    .weights = weights,
                    .compensation = compensation,
                    .m = m.view(),
                    .v = v.view()});
  }
  std::map<std::string, Tensor> residuals;
  for (const SafetensorsEntry& entry : reader.entries()) {
    if (!entry.name.ends_with(kResidual)) continue;
    if (residuals.empty()) residuals = named_tensors({}, state.reducer.residuals());
    const auto residual = residuals.find(entry.name);
    if (residual == residuals.end()) continue;
    const std::vector<float> values = as_floats(reader, entry);
    require<CheckpointError>(std::ssize(values) == residual->second.numel(), "{}: '{}' has {} elements, expected {}",
                             path, entry.name, values.size(), residual->second.numel());
    state.backend.upload(values.data(), residual->second, state.stream);
  }
}

std::string shortage_text(const std::string& error, uint64_t bytes, const std::string& folder, int keep_last) {
  const auto says = [&error](int code) { return error.find(std::generic_category().message(code)) != error.npos; };
  if (!says(ENOSPC) && !says(EDQUOT)) return "";
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  if (unknown) return "";
  const auto mib = [](uint64_t of) { return std::ldexp(static_cast<double>(of), -20); };
  std::string text = fmt::format(". A checkpoint takes {:.1f} MiB, and {} has {:.1f} MiB free: ", mib(bytes), folder,
                                 mib(space.available));
  if (bytes <= space.available) return text + "your quota may be used up";
  text += fmt::format("free {:.1f} MiB there", mib(bytes - space.available));
  if (keep_last == 0) return text + ", or set checkpoint.keep_last (now 0: all)";
  return keep_last == 1 ? text : text + fmt::format(", or lower checkpoint.keep_last (now {})", keep_last);
}

CheckpointFile write_scales_file(const std::string& folder, const std::string& name, const DelayedScales& scales) {
  const DelayedScales::State state = scales.state();
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::span<const std::byte>> values;
  const auto add = [&](std::string key, DType dtype, auto tensor) {
    values.emplace(key, std::as_bytes(tensor));
    entries.push_back({.name = std::move(key),
                       .dtype = std::string(safetensors_name(dtype)),
                       .shape = {static_cast<int64_t>(tensor.size())}});
  };
  const auto length = static_cast<size_t>(state.entries);
  for (size_t index = 0; index < state.names.size(); ++index) {
    add(state.names[index] + kScale, DType::kF32, std::span(state.scales).subspan(index, 1));
    add(state.names[index] + kAmaxes, DType::kI32, std::span(state.amaxes).subspan(index * length, length));
  }
  CheckpointFileWriter file(folder, name);
  SafetensorsWriter writer(file, std::move(entries));
  for (const SafetensorsEntry& entry : writer.order()) writer.append(entry.name, values.at(entry.name));
  writer.finish();
  return file.close();
}

DelayedScales::State read_scales_file(const std::string& path) {
  const SafetensorsReader reader(path);
  DelayedScales::State state;
  for (const SafetensorsEntry& entry : reader.entries()) {
    if (!entry.name.ends_with(kScale)) continue;
    const std::string tensor = entry.name.substr(0, entry.name.size() - std::strlen(kScale));
    const SafetensorsEntry& amaxes = reader.at(tensor + kAmaxes);
    const auto length = static_cast<int64_t>(amaxes.size_bytes() / sizeof(int32_t));
    if (!state.names.empty() && length != state.entries) {
      throw CheckpointError(fmt::format("{}: '{}' holds {} amaxes, '{}' {}: all tensors of a run have as many", path,
                                        amaxes.name, length, state.names.front() + kAmaxes, state.entries));
    }
    state.entries = length;
    state.names.push_back(tensor);
    float& scale = state.scales.emplace_back();
    reader.read(entry.name, DType::kF32, std::array<int64_t, 1>{1}, std::as_writable_bytes(std::span(&scale, 1)));
    const size_t begin = state.amaxes.size();
    state.amaxes.resize(begin + static_cast<size_t>(length));
    reader.read(amaxes.name, DType::kI32, std::array{length},
                std::as_writable_bytes(std::span(state.amaxes).subspan(begin)));
  }
  return state;
}

CheckpointFile write_model_file(const std::string& folder, const std::string& name, const ParameterSet& parameters,
                                Backend& backend, Stream& stream) {
  std::map<std::string, Tensor> tensors;
  for (int index = 0; index < parameters.size(); ++index) {
    if (parameters[index].is_trainable) tensors.emplace(parameters[index].name, parameters[index].weight);
  }
  CheckpointFileWriter file(folder, name);
  write_tensors(file, tensors, backend, stream);
  return file.close();
}

}  // namespace mantissa
