#include "tools/model/exchange/llmc_layout.h"
#include "models/model.h"

#include <span>
#include <string_view>
#include <utility>

namespace mantissa {
namespace {

enum class RowsOfKind : uint8_t {
  kAll,
  kPadded,      // those of the vocabulary, and padding
  kHeads,       // of queries, keys and values; llm.c's RoPE turns neighbouring channels of queries and keys
  kGate,        // a gated layer holds the gate's rows first here
  kUp,          // behind the gate's
  kUpThenGate,  // both, a layer at a time
  kBias,        // no rows of the parameter: a zero for each of them
};

// "*" in a name stands for the layer.
struct Kind {
  std::string_view parameter;
  RowsOfKind rows = RowsOfKind::kAll;
};

constexpr Kind kGpt2[] = {{"token_embedding.weight", RowsOfKind::kPadded},
                          {"position_embedding.weight"},
                          {"blocks.*.norm1.weight"},
                          {"blocks.*.norm1.bias"},
                          {"blocks.*.attention.qkv.weight"},
                          {"blocks.*.attention.qkv.bias"},
                          {"blocks.*.attention.out.weight"},
                          {"blocks.*.attention.out.bias"},
                          {"blocks.*.norm2.weight"},
                          {"blocks.*.norm2.bias"},
                          {"blocks.*.mlp.up.weight"},
                          {"blocks.*.mlp.up.bias"},
                          {"blocks.*.mlp.down.weight"},
                          {"blocks.*.mlp.down.bias"},
                          {"final_norm.weight"},
                          {"final_norm.bias"}};

constexpr Kind kLlama[] = {{"token_embedding.weight"},
                           {"blocks.*.norm1.weight"},
                           {"blocks.*.attention.qkv.weight", RowsOfKind::kHeads},
                           {"blocks.*.attention.out.weight"},
                           {"blocks.*.norm2.weight"},
                           {"blocks.*.mlp.up.weight", RowsOfKind::kUp},    // c_fc
                           {"blocks.*.mlp.up.weight", RowsOfKind::kGate},  // c_fc2
                           {"blocks.*.mlp.down.weight"},
                           {"final_norm.weight"},
                           {"head.weight"}};

constexpr Kind kLlamaCuda[] = {{"token_embedding.weight"},
                               {"head.weight"},
                               {"blocks.*.norm1.weight"},
                               {"blocks.*.norm1.weight", RowsOfKind::kBias},
                               {"blocks.*.attention.qkv.weight", RowsOfKind::kHeads},
                               {"blocks.*.attention.qkv.weight", RowsOfKind::kBias},
                               {"blocks.*.attention.out.weight"},
                               {"blocks.*.attention.out.weight", RowsOfKind::kBias},
                               {"blocks.*.norm2.weight"},
                               {"blocks.*.norm2.weight", RowsOfKind::kBias},
                               {"blocks.*.mlp.up.weight", RowsOfKind::kUpThenGate},
                               {"blocks.*.mlp.up.weight", RowsOfKind::kBias},
                               {"blocks.*.mlp.down.weight"},
                               {"blocks.*.mlp.down.weight", RowsOfKind::kBias},
                               {"final_norm.weight"},
                               {"final_norm.weight", RowsOfKind::kBias}};

std::span<const Kind> kinds_of(LlmcLayout layout) {
  if (layout == LlmcLayout::kGpt2) return kGpt2;
  if (layout == LlmcLayout::kLlama) return kLlama;
  return kLlamaCuda;
}

}  // namespace

int64_t LlmcPiece::numel() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<LlmcPiece> llmc_pieces(LlmcLayout layout, const ModelConfig& model, int64_t padded_vocab) {
  ParameterSet parameters;
  create_model(model, parameters);
  std::vector<LlmcPiece> pieces;
  const int64_t head = model.resolved_head_dim(), mlp = model.resolved_mlp_width();
  const auto add_kind = [&](RowsOfKind rows, std::string name) {
    if (name == "head.weight" && model.tie_head) name = "token_embedding.weight";
    const Shape& whole = parameters.find(name)->shape;
    // So many rows from `first` on.
    const auto add = [&](int64_t first, int64_t count, int64_t interleaved_head = 0) {
      std::vector<int64_t> shape = {count};
      for (int axis = 1; axis < whole.rank(); ++axis) shape.push_back(whole[axis]);
      pieces.push_back({.parameter = name, .shape = shape, .first_row = first, .interleaved_head = interleaved_head});
    };
    switch (rows) {
      case RowsOfKind::kAll:
        return add(0, whole[0]);
      case RowsOfKind::kPadded:
        add(0, whole[0]);
        add(whole[0], padded_vocab - whole[0]);
        pieces.back().content = LlmcPiece::Content::kPadding;
        return;
      case RowsOfKind::kHeads: {
        const int64_t queries = model.heads * head, keys = model.resolved_kv_heads() * head;
        add(0, queries, head);
        add(queries, keys, head);
        return add(queries + keys, keys);
      }
      case RowsOfKind::kUpThenGate:
        add(mlp, mlp);
        return add(0, mlp);
      case RowsOfKind::kUp:
        return add(mlp, mlp);
      case RowsOfKind::kGate:
        return add(0, mlp);
      case RowsOfKind::kBias:
        pieces.push_back({.parameter = name, .shape = {whole[0]}, .content = LlmcPiece::Content::kZeros});
        return;
    }
  };
  for (const Kind& kind : kinds_of(layout)) {
    const size_t star = kind.parameter.find('*');
    const int64_t count = star == std::string_view::npos ? 1 : model.layers;
    for (int64_t layer = 0; layer < count; ++layer) {
      std::string name(kind.parameter);
      if (star != std::string_view::npos) name.replace(star, 1, std::to_string(layer));
      add_kind(kind.rows, std::move(name));
    }
  }
  return pieces;
}

}  // namespace mantissa
