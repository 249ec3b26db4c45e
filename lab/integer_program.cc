// Calls the C interface of COIN-OR CBC. It requires names of columns and rows, which are not used.
// When CBC stops at the time limit, it still reports its best solution and bound. For programs that
// are infeasible within tolerances, CBC may report "proven optimal" without a solution; this counts
// as stopped.
#include "lab/integer_program.h"

#include <coin/Cbc_C_Interface.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Much finer than CBC's default of 1e-6: binary variables have coefficients of about a thousand, so
// their rounding errors would noticeably change times.
constexpr char kIntegerTolerance[] = "1e-9";
// CBC treats a limit of 0 as no limit.
constexpr double kMinSeconds = 1e-3;

}  // namespace

struct IntegerProgram::Model {
  Cbc_Model* cbc = Cbc_newModel();
  int variables = 0;
  int rows = 0;
  ~Model() { Cbc_deleteModel(cbc); }

  int Add(double lower, double upper, double cost, bool integer) {
    Cbc_addCol(cbc, absl::StrCat("v", variables).c_str(), lower, upper, cost, integer ? 1 : 0, 0,
               nullptr, nullptr);
    return variables++;
  }
};

IntegerProgram::IntegerProgram() : model_(std::make_unique<Model>()) {
  Cbc_setLogLevel(model_->cbc, 0);
  Cbc_setObjSense(model_->cbc, 1);
}
IntegerProgram::~IntegerProgram() = default;

int IntegerProgram::AddVariable(double lower, double upper, double cost) {
  return model_->Add(lower, upper, cost, /*integer=*/false);
}

int IntegerProgram::AddBinary(double cost) { return model_->Add(0, 1, cost, /*integer=*/true); }

void IntegerProgram::AddRow(const Terms& terms, char relation, double right) {
  std::vector<int> columns;
  std::vector<double> factors;
  for (const auto& [variable, factor] : terms) {
    columns.push_back(variable);
    factors.push_back(factor);
  }
  const char sense = relation == '<' ? 'L' : relation == '>' ? 'G' : 'E';
  Cbc_addRow(model_->cbc, absl::StrCat("r", model_->rows).c_str(), std::ssize(columns),
             columns.data(), factors.data(), sense, right);
  ++model_->rows;
}

IntegerProgram::Answer IntegerProgram::Minimise(double seconds) {
  Cbc_Model* cbc = model_->cbc;
  Cbc_setParameter(cbc, "integerTolerance", kIntegerTolerance);
  Cbc_setParameter(cbc, "timeMode", "elapsed");
  Cbc_setParameter(cbc, "ratioGap", "0");
  Cbc_setParameter(cbc, "allowableGap", "1e-7");
  Cbc_setMaximumSeconds(cbc, std::max(kMinSeconds, seconds));
  Cbc_solve(cbc);
  Answer answer{.bound = Cbc_getBestPossibleObjValue(cbc)};
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
