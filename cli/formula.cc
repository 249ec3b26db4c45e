#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/render.h"
#include "cli/table.h"
#include "lab/formulas.h"

namespace cadre {

absl::StatusOr<int> ShowFormula(const Invocation& in) {
  const std::vector<std::string>& arguments = in.line.arguments();
  if (arguments.empty()) {
    Table table({"FORMULA", "PARAMETERS", "SOURCE"});
    for (const FormulaUsage& formula : Formulas()) {
      table.AddRow({formula.name, formula.parameters, formula.source});
    }
    in.console.out << table.Text() << std::flush;
    return kExitOk;
  }
  const absl::StatusOr<FormulaResults> results =
      Evaluate(arguments[0], {arguments.begin() + 1, arguments.end()});
  if (!results.ok()) return UsageError(results.status().message());
  Json json = Json::object();
  std::string text;
  for (const auto& [result, value] : *results) {
    json[result] = value;
    absl::StrAppend(&text, result, " ", OneLine(value), "\n");
  }
  Print(json, text, in.global, in.console);
  return kExitOk;
}

}  // namespace cadre
