#include "coordinator/run/commit_rules.h"

#include "coordinator/run/round.h"
#include "coordinator/run/run_rules.h"
#include "model/coding.h"
#include "model/data_position.h"
#include "model/outer_optimizer.h"
#include "model/screen.h"

namespace cadre {
namespace {

// How the aggregators make the version of the round that is closed.
void SetRules(const v1::RunRecord& run, v1::CommitRecord& commit) {
  if (const auto outer = OuterOptimizerOf(run.spec().averaging())) {
    *commit.mutable_outer()->mutable_optimizer() = *outer;
  } else {
    commit.clear_outer();
  }
  if (const auto up = CodingOf(run.spec().averaging().up())) *commit.mutable_up() = *up;
  if (const auto down = CodingOf(run.spec().averaging().down())) *commit.mutable_down() = *down;
  commit.set_fragment(FragmentAfter(run, run.version()));
  commit.set_trim(TrimOf(run.spec().averaging(), commit.participants_size()));
}

}  // namespace

v1::SampleDivision NextDivision(const v1::RunRecord& run, uint32_t step) {
  const v1::SampleDivision division = DivisionOf(run);
  const uint32_t groups = run.scaling_to();
  if (groups == 0 || groups == division.groups()) return division;
  return DivideFrom(division, step, groups, BatchOf(run.spec()));
}

void FillFromClaims(const v1::RunRecord& run, v1::CommitRecord& commit) {
  SumUp(commit);
  SetRules(run, commit);
  *commit.mutable_division() = NextDivision(run, commit.step());
  commit.set_run_samples(run.samples() + commit.samples());
}

void FillCopy(const v1::RunRecord& run, v1::CommitRecord& commit) {
  commit.set_restores(run.version());
  commit.set_step(run.step());
  commit.set_samples(0);
  commit.set_run_samples(run.samples());
  commit.clear_loss();
  if (run.has_loss()) commit.set_loss(run.loss());
  commit.clear_metrics();
  commit.clear_outer();
  commit.clear_up();
  commit.clear_down();
  commit.clear_fragment();
  commit.clear_trim();
  *commit.mutable_division() = DivisionOf(run);
}

}  // namespace cadre
