#include "core/kernels/optimizer/dynamic_map_table_cpu.h"

#include <limits>

namespace mantissa::cpu {
namespace {

DynamicMapTable make_table(DynamicMap map) {
  DynamicMapTable table;
  table.thresholds.fill(std::numeric_limits<float>::infinity());
  const int last = last_position(map);
  for (int position = 0; position < last; ++position) {
    table.thresholds[static_cast<size_t>(position)] = dynamic_threshold(map, position);
  }
  for (int32_t cell = 0; cell < DynamicMapTable::kCells; ++cell) {
    const auto first = std::bit_cast<float>((DynamicMapTable::kFirstCell + cell) << 16);
    table.positions[static_cast<size_t>(cell)] = nearest_position(map, first, table.thresholds.data());
  }
  for (int code = 0; code < 256; ++code) {
    table.values[static_cast<size_t>(code)] = dynamic_value(map, static_cast<uint8_t>(code));
  }
  return table;
}

}  // namespace

const DynamicMapTable& dynamic_map_table(DynamicMap map) {
  static const DynamicMapTable signed_table = make_table(DynamicMap::kSigned),
                               unsigned_table = make_table(DynamicMap::kUnsigned);
  return map == DynamicMap::kSigned ? signed_table : unsigned_table;
}

}  // namespace mantissa::cpu
