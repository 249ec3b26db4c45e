#include "plan/report/plan_question.h"

#include <algorithm>
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
    // From the bandwidth of the request: 1 / hardware.link.beta may differ in the last digit.
    paper.link = WordLink::OfBandwidth(request.link->alpha, request.link->bandwidth);
  } else if (hardware.link.known()) {
    paper.link = {hardware.link.alpha, hardware.link.beta * kBytesPerWord};
  }
  return paper;
}

absl::StatusOr<std::unique_ptr<PlanQuestion>> MakePlanQuestion(PlanRequest request) {
  auto question = std::make_unique<PlanQuestion>();
  question->request = std::move(request);
  const PlanRequest& given = question->request;
  CADRE_ASSIGN_OR_RETURN(question->graph, Graph::FromModel(given.spec.model()));
  question->index = ParameterIndex::FromGraph(question->graph);
  question->network = NetworkShapeOf(question->graph);
  CADRE_ASSIGN_OR_RETURN(HardwareModel hardware, HardwareFor(given, question->graph));
  PlanProblem& problem = question->problem;
  CADRE_ASSIGN_OR_RETURN(problem, ProblemOf(given.spec, question->graph, question->index,
                                            given.workers, std::move(hardware)));
  problem.strategy = given.strategy;
  if (given.bucket_elements) problem.bucket_elements = given.bucket_elements;
  if (!problem.hardware.computes()) problem.overlap = false;
  return question;
}

}  // namespace cadre
