// The keys that a configuration knows, and what to say about one that it does not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/io/config_fields.h"
#include "core/io/config_reader.h"

namespace mantissa {

struct ConfigKeys {
  struct Key {
    std::string section;  // "optimizer.clip"; "" at the top; "precision.rules[]" inside of a list's element
    std::string name;
    bool is_section = false;
  };
  std::vector<Key> keys;  // in the order of the binding
};

ConfigKeys collect_config_keys(const ConfigBinding& bind);

// "a.b" and "c" to "a.b.c"; "" and "c" to "c".
std::string join_config_path(std::string_view section, std::string_view key);

// "unknown key 'lr' in section 'train'; it belongs in section 'optimizer'".
std::string explain_unknown(const ConfigKeys& keys, const ConfigSynonyms& synonyms, const std::string& section,
                            const std::string& name);

// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace mantissa
