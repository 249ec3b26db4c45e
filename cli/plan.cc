#include "cli/plan.h"

#include "cli/json.h"
#include "cli/plan_json.h"
#include "cli/plan_prospect.h"
#include "cli/plan_question.h"
#include "cli/plan_table.h"
#include "cli/spec_file.h"

namespace cadre {

int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console) {
  const auto question = AskPlan(options);
  if (!question.ok()) return FailSpec(console, question.status());
  const absl::StatusOr<Prospect> prospect = Foresee(**question);
  if (!prospect.ok()) return Fail(console, prospect.status());
  if (global.format == OutputFormat::kJson) {
    console.out << Indent(ProspectJson(*prospect)) << std::endl;
  } else {
    console.out << ProspectText(*prospect) << std::flush;
  }
  return kExitOk;
}

}  // namespace cadre
