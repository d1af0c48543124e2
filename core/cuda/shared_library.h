// An NVIDIA library, opened at run time so that the program also starts without it.
#pragma once

#include <string>
#include <vector>

namespace mantissa::cuda {

class SharedLibrary {
 public:
  // Opens `name` ("libcudnn.so.9") for the life of the process. Searches the loader's own paths, then the lib64 and lib
  // folders of the paths in the environment `variables` and of /usr/local/cuda. Throws ConfigError with the loader's
  // reasons and `advice` if there is none.
  SharedLibrary(std::string name, const std::vector<const char*>& variables, std::string advice);

  // Null if the library lacks the symbol.
  template <typename Function>
  void find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address(symbol));
  }
  // Throws ConfigError with `advice` if the library lacks the symbol.
  template <typename Function>
  void resolve(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(require(symbol));
  }
  const std::string& name() const { return name_; }

 private:
  void* address(const char* symbol) const;
  void* require(const char* symbol) const;

  std::string name_, advice_;
  void* handle_;
};

// For a list of (function of a header, its name in a table): the table's members, and statements that fill `table` from
// the SharedLibrary `library`.
#define MANTISSA_DECLARE_FUNCTION(function, member) \
  decltype(&(function)) member = nullptr;  // NOLINT(bugprone-macro-parentheses): a name
#define MANTISSA_FIND_FUNCTION(function, member) library.resolve(#function, table.member);

}  // namespace mantissa::cuda
