#include "plan/cost/epochs_table.h"

#include <google/protobuf/text_format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/text_message.h"

namespace cadre {
namespace {

constexpr int64_t kMaxTableBytes = 16 << 20;

std::vector<Problem> FindTableProblems(const v1::EpochsTable& table) {
  std::vector<Problem> problems;
  const float target = table.target_accuracy();
  if (!(target >= 0 && target <= 1)) {
    problems.push_back({"target_accuracy", absl::StrCat("is ", target, "; it lies in [0, 1]")});
  }
  if (table.batch_per_worker() == 0) problems.push_back({"batch_per_worker", "is missing"});
  for (int i = 0; i < table.entry_size(); ++i) {
    const v1::EpochsEntry& entry = table.entry(i);
    const std::string field = absl::StrCat("entry[", i, "]");
    if (entry.workers() == 0) problems.push_back({field + ".workers", "is missing"});
    if (!(entry.epochs() > 0) || !std::isfinite(entry.epochs())) {
      problems.push_back(
          {field + ".epochs", absl::StrCat("is ", entry.epochs(), "; it must be above 0")});
    }
  }
  return problems;
}

}  // namespace

absl::Status CheckEpochsTable(const v1::EpochsTable& table) {
  return StatusOf(FindTableProblems(table));
}

absl::StatusOr<v1::EpochsTable> ReadEpochsTable(const std::string& path) {
  return ReadValidMessage(path, kMaxTableBytes, "a table of epochs in text format",
                          FindTableProblems);
}

std::string PrintEpochsTable(const v1::EpochsTable& table, absl::string_view name) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(table, &text);
  return absl::StrCat(
      "# proto-file: proto/cadre/v1/profile.proto\n"
      "# proto-message: cadre.v1.EpochsTable\n"
      "#\n"
      "# Epochs until a model is good enough, by the number of workers that train it, each on\n"
      "# batch_per_worker samples a step. Measured by 'cadre measure-epochs', read by\n"
      "# 'cadre plan --epochs'.",
      name.empty() ? "" : absl::StrCat(" The run spec was \"", name, "\"."), "\n\n", text);
}

}  // namespace cadre
