// PlacedGraph as an integer programme (DLPlacer: Pal et al. 2019).
//
// Unknowns: P_kn, operator k is on device n; x_ij, operator i ends before j begins, on one device;
// y_enm, edge e goes from device n to m; t_k, the start of k; T, the makespan, which is minimised.
//
//   sum_n P_kn = 1;   sum_k m_k P_kn <= memory of n
//   sum_m y_enm = P_un,  sum_n y_enm = P_vm                                  for e = (u, v)
//   t_v >= t_u + sum_n d_un P_un + sum_nm c_enm y_enm
//   x_ij + x_ji >= P_in + P_jn - 1;   t_j >= t_i + sum_n d_in P_in - M_ij (1 - x_ij)
//   T >= t_k + sum_n d_kn P_kn
//
// Which way a tensor takes costs nothing to others, so the paper's flow over links is the shortest
// way, found before (c_enm, coordinator/placement/routes.h) instead of in the programme: the same
// least, with fewer unknowns.
//
// What makes it close sooner: only schedules better than a known one are asked for, which bounds
// every start from both sides (coordinator/placement/bounds.h), makes every M_ij as small as it can
// be, and settles the order of many pairs; a device's load between a head and a tail bounds T; of
// devices that are alike, the first operators take the first.
//
// Thread-compatible, as IntegerProgramme is.
#pragma once

#include <optional>

#include "coordinator/placement/bounds.h"
#include "coordinator/placement/schedule.h"

namespace cadre {

struct ProgrammeAnswer {
  // Better than the known one; nothing: none was found.
  std::optional<Schedule> schedule;
  // It, or if nothing was found the known one, is the best there is.
  bool proven = false;
  // No schedule is shorter; 0: not known.
  double lower_bound = 0;
  int nodes = 0;
};

// Looks for a schedule shorter than `known`, by more than a millionth. Requires: known fits.
ProgrammeAnswer SolvePlacement(const PlacementProblem& problem, const TimeWindows& windows,
                               const Schedule& known, double seconds);

// What the programme's size grows with: pairs of operators that may meet on a device, and edges
// times pairs of devices.
int64_t ProgrammeSize(const PlacementProblem& problem);

}  // namespace cadre
