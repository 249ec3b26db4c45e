#include "lab/plan_question.h"

#include <utility>

#include "base/status.h"

namespace cadre {
namespace {

absl::StatusOr<HardwareModel> HardwareFor(const PlanRequest& request, const Graph& graph) {
  HardwareModel hardware;
  if (request.profile) {
    CADRE_ASSIGN_OR_RETURN(hardware, HardwareOf(*request.profile, request.spec.model(), graph,
                                                /*first_worker=*/0, request.workers));
  } else if (request.link) {
    hardware = UniformHardware({.alpha = request.link->alpha,
                                .beta = 1 / request.link->bandwidth,
                                .gamma = request.link->gamma},
                               request.flops);
    hardware.link_kind = v1::LinkProfile::GIVEN;
  }
  if (request.memory_bytes > 0 &&
      (hardware.memory_bytes == 0 || request.memory_bytes < hardware.memory_bytes)) {
    hardware.memory_bytes = request.memory_bytes;
  }
  return hardware;
}

}  // namespace

HybridProblem PlanQuestion::paper_problem() const {
  const HardwareModel& hardware = problem.hardware;
  HybridProblem paper = {.network = &network, .workers = problem.ranks, .flops = hardware.flops};
  paper.batch = problem.batch;
  paper.memory_bytes = hardware.memory_bytes;
  if (request.link && !request.profile) {
    // The bandwidth is that of the request, because 1 / hardware.link.beta may differ in the last
    // digit.
    paper.link = WordLink::OfBandwidth(request.link->alpha, request.link->bandwidth);
  } else if (hardware.link.known()) {
    paper.link = {hardware.link.alpha, hardware.link.beta * kBytesPerWord};
  }
  return paper;
}

absl::StatusOr<std::unique_ptr<PlanQuestion>> MakePlanQuestion(PlanRequest request) {
  auto question = std::make_unique<PlanQuestion>();
  question->request = std::move(request);
  const v1::RunSpec& spec = question->request.spec;
  CADRE_ASSIGN_OR_RETURN(question->graph, Graph::FromModel(spec.model()));
  question->index = ParameterIndex::FromGraph(question->graph);
  question->network = NetworkShapeOf(question->graph);
  CADRE_ASSIGN_OR_RETURN(HardwareModel hardware, HardwareFor(question->request, question->graph));
  PlanProblem& problem = question->problem;
  CADRE_ASSIGN_OR_RETURN(problem, ProblemOf(spec, question->graph, question->index,
                                            question->request.workers, std::move(hardware)));
  problem.strategy = question->request.strategy;
  problem.bucket_elements = question->request.bucket_elements;
  if (!problem.hardware.computes()) problem.overlap = false;
  return question;
}

}  // namespace cadre
