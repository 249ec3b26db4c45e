// A shared library for the loader's tests to load.
extern "C" int cadre_probe_answer() { return 42; }
