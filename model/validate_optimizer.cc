// Cosine and polynomial decay are functions of the run's length, so they require a stop rule that
// determines it (epochs or steps); a target accuracy alone ends the run at an unknown step.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/validation_parts.h"

namespace cadre {
namespace {

class OptimizerValidation : private SpecChecker {
 public:
  using SpecChecker::SpecChecker;

  std::vector<Problem> Run() {
    CheckOptimizer();
    Positive("schedule.base_rate", spec_.schedule().base_rate());
    CheckWarmup();
    CheckDecay();
    return std::move(problems_);
  }

 private:
  void CheckOptimizer() {
    const v1::Optimizer& optimizer = spec_.optimizer();
    switch (optimizer.kind_case()) {
      case v1::Optimizer::kSgd:
        BelowOne("optimizer.sgd.momentum", optimizer.sgd().momentum());
        NotNegative("optimizer.sgd.weight_decay", optimizer.sgd().weight_decay());
        if (optimizer.sgd().nesterov() && optimizer.sgd().momentum() == 0.0F) {
          Add("optimizer.sgd.nesterov",
              "has no effect without momentum; give momentum, or leave it out");
        }
        break;
      case v1::Optimizer::kAdamw:
        BelowOne("optimizer.adamw.beta1", optimizer.adamw().beta1());
        BelowOne("optimizer.adamw.beta2", optimizer.adamw().beta2());
        NotNegative("optimizer.adamw.epsilon", optimizer.adamw().epsilon());
        NotNegative("optimizer.adamw.weight_decay", optimizer.adamw().weight_decay());
        break;
      case v1::Optimizer::kLars:
        BelowOne("optimizer.lars.momentum", optimizer.lars().momentum());
        NotNegative("optimizer.lars.weight_decay", optimizer.lars().weight_decay());
        NotNegative("optimizer.lars.trust", optimizer.lars().trust());
        break;
      case v1::Optimizer::KIND_NOT_SET:
        Add("optimizer", "has no kind; give sgd, adamw or lars");
    }
    NotNegative("optimizer.clip_norm", optimizer.clip_norm());
  }

  // If the number of steps is limited, the warm-up must fit.
  void CheckWarmup() {
    const uint64_t warmup = spec_.schedule().warmup_steps();
    uint64_t steps = spec_.stop().steps();
    std::string why = "stop.steps";
    const uint64_t train = spec_.data().synthetic().train_samples();
    if (train > 0 && spec_.stop().epochs() > 0) {
      const uint64_t batch =
          uint64_t{OrOne(spec_.batch_per_group())} * OrOne(spec_.cluster().groups());
      // An epoch may end in the middle of a batch.
      const uint64_t max_steps = train * spec_.stop().epochs() / batch + spec_.stop().epochs();
      if (steps == 0 || max_steps < steps) {
        steps = max_steps;
        why = "stop.epochs";
      }
    }
    if (steps == 0 || warmup <= steps) return;
    Add("schedule.warmup_steps", "is ", warmup, ", but the run ends after at most ", steps,
        " steps by ", why, "; warm up within them");
  }

  // Checks the decay's own fields first, then that the run's length is known.
  void CheckDecay() {
    const v1::Schedule& schedule = spec_.schedule();
    std::string curve;
    switch (schedule.decay_case()) {
      case v1::Schedule::kStep:
        AtLeastOne("schedule.step.every_steps", schedule.step().every_steps());
        return Positive("schedule.step.factor", schedule.step().factor());
      case v1::Schedule::kCosine:
        curve = "schedule.cosine";
        Fraction("schedule.cosine.final_fraction", schedule.cosine().final_fraction());
        break;
      case v1::Schedule::kPolynomial:
        curve = "schedule.polynomial";
        NotNegative("schedule.polynomial.power", schedule.polynomial().power());
        Fraction("schedule.polynomial.final_fraction", schedule.polynomial().final_fraction());
        break;
      case v1::Schedule::DECAY_NOT_SET:
        return;
    }
    // CheckStop reports a run without rules.
    if (spec_.stop().epochs() == 0 && spec_.stop().steps() == 0 && GivesStop(spec_.stop())) {
      Add(curve, "needs a run of known length; give stop.epochs or stop.steps too");
    }
  }
};

}  // namespace

std::vector<Problem> OptimizerProblems(const v1::RunSpec& spec) {
  return OptimizerValidation(spec).Run();
}

}  // namespace cadre
