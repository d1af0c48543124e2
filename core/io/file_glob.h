// File patterns to file names, in one order on every machine and rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

// Whether the text holds a wildcard: * ? or [.
bool has_wildcard(std::string_view pattern);

// The regular files that match: * ? [a-z] within one folder, ** for any number of folders. Sorted by bytes. Names that
// start with '.' need a pattern that does; ** does not follow links to folders. A pattern without wildcards is returned
// as it stands, whether or not there is such a file, so that opening it gives the reason.
std::vector<std::string> expand_glob(const std::string& pattern);

}  // namespace mantissa
