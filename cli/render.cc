#include "cli/render.h"

namespace cadre {

void Print(const Json& json, const std::string& text, const GlobalOptions& options,
           const Console& console, JsonLayout layout) {
  if (IsJson(options.format)) {
    const bool one_line =
        layout == JsonLayout::kOneLine || options.format == OutputFormat::kJsonLines;
    console.out << (one_line ? OneLine(json) : Indented(json)) << std::endl;
  } else {
    console.out << text << std::flush;
  }
}

}  // namespace cadre
