// Plugin: a model in a shared library of its own, which the program loads for model.plugin. Include this in the file
// that calls register_model(), and compile it as
//
//   g++ -std=c++20 -O2 -fPIC -shared -I BUNDLE/include own_model.cc -o own_model.so
//
// Link no library of ours into it: the program has all of them, and a second copy would have a registry of its own.
#pragma once

#include "models/interface.h"
#include "models/model.h"

#define MANTISSA_QUOTED(text) #text
#define MANTISSA_VALUE_OF(macro) MANTISSA_QUOTED(macro)
#ifdef __clang__
#define MANTISSA_COMPILER "clang " MANTISSA_VALUE_OF(__clang_major__)
#else
#define MANTISSA_COMPILER "GCC " MANTISSA_VALUE_OF(__GNUC__)
#endif

// The headers and the compiler of this file. Both must be those of the program, or classes may have another layout.
#define MANTISSA_STAMP \
  "headers " MANTISSA_INTERFACE ", " MANTISSA_COMPILER ", string ABI " MANTISSA_VALUE_OF(_GLIBCXX_USE_CXX11_ABI)
#define MANTISSA_PLUGIN_MARK "mantissa plugin: "

namespace mantissa {

// The program reads it in the file before it loads the plugin. Exported, or a linker that drops unused data drops it.
[[gnu::used, gnu::visibility("default")]] inline const char kPluginStamp[] = MANTISSA_PLUGIN_MARK MANTISSA_STAMP;

}  // namespace mantissa
