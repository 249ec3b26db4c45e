#include "coordinator/placement/integer_programme.h"

#include <coin/Cbc_C_Interface.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Much finer than CBC's own 1e-6: with factors of a thousand beside the binaries, what is left of a
// binary must not buy time.
constexpr char kIntegerTolerance[] = "1e-9";
// CBC takes a limit of 0 for none.
constexpr double kLeastSeconds = 1e-3;

}  // namespace

struct IntegerProgramme::Model {
  Cbc_Model* cbc = Cbc_newModel();
  int variables = 0;
  int rows = 0;
  ~Model() { Cbc_deleteModel(cbc); }
};

IntegerProgramme::IntegerProgramme() : model_(std::make_unique<Model>()) {
  Cbc_setLogLevel(model_->cbc, 0);
  Cbc_setObjSense(model_->cbc, 1);
}
IntegerProgramme::~IntegerProgramme() = default;
IntegerProgramme::IntegerProgramme(IntegerProgramme&&) noexcept = default;
IntegerProgramme& IntegerProgramme::operator=(IntegerProgramme&&) noexcept = default;

int IntegerProgramme::variables() const { return model_->variables; }
int IntegerProgramme::rows() const { return model_->rows; }

int IntegerProgramme::AddVariable(double lower, double upper, double cost) {
  Cbc_addCol(model_->cbc, absl::StrCat("v", model_->variables).c_str(), lower, upper, cost, 0, 0,
             nullptr, nullptr);
  return model_->variables++;
}

int IntegerProgramme::AddBinary(double cost) {
  Cbc_addCol(model_->cbc, absl::StrCat("v", model_->variables).c_str(), 0, 1, cost, 1, 0, nullptr,
             nullptr);
  return model_->variables++;
}

void IntegerProgramme::AddRow(const Terms& terms, char relation, double right) {
  std::vector<int> columns;
  std::vector<double> factors;
  for (const auto& [variable, factor] : terms) {
    columns.push_back(variable);
    factors.push_back(factor);
  }
  const char sense = relation == '<' ? 'L' : relation == '>' ? 'G' : 'E';
  Cbc_addRow(model_->cbc, absl::StrCat("r", model_->rows).c_str(), static_cast<int>(columns.size()),
             columns.data(), factors.data(), sense, right);
  ++model_->rows;
}

void IntegerProgramme::SetStart(const std::vector<double>& values) {
  std::vector<int> columns;
  for (int v = 0; v < model_->variables; ++v) columns.push_back(v);
  Cbc_setMIPStartI(model_->cbc, model_->variables, columns.data(), values.data());
}

IntegerProgramme::Answer IntegerProgramme::Minimise(const Options& options) {
  Cbc_Model* cbc = model_->cbc;
  Cbc_setParameter(cbc, "integerTolerance", kIntegerTolerance);
  Cbc_setParameter(cbc, "timeMode", "elapsed");
  Cbc_setParameter(cbc, "ratioGap", "0");
  Cbc_setParameter(cbc, "allowableGap", "1e-7");
  Cbc_setMaximumSeconds(cbc, std::max(kLeastSeconds, options.seconds));
  Cbc_solve(cbc);
  Answer answer{.bound = Cbc_getBestPossibleObjValue(cbc), .nodes = Cbc_getNodeCount(cbc)};
  const bool stopped = Cbc_status(cbc) != 0;
  if (!stopped && Cbc_isProvenInfeasible(cbc)) {
    answer.outcome = Outcome::kInfeasible;
    return answer;
  }
  if (!stopped && Cbc_isProvenOptimal(cbc)) answer.outcome = Outcome::kOptimal;
  if (const double* best = Cbc_bestSolution(cbc); best != nullptr) {
    answer.values.assign(best, best + model_->variables);
  }
  if (answer.values.empty() && answer.outcome == Outcome::kOptimal) {
    answer.outcome = Outcome::kStopped;
  }
  return answer;
}

}  // namespace cadre
