// Variables through the C++ header: variables PLAN.
#include <iostream>

#include "of_runtime.hpp"

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    try {
        of_runtime::Plan plan(argv[1]);
        for (const auto &variable : plan.variables()) {
            std::cout << "variable " << variable.name << ": " << variable.type_text << "\n";
        }
        of_runtime::Session first(plan), second(plan, first);
        const float x[] = {1, 2, 3, 4};
        first.set_input(0, x, {4});
        second.set_input(0, x, {4});
        try {
            first.run();
        } catch (const of_runtime::Error &error) {
            if (error.status() != OF_INPUT) return 1;
            std::cout << "refused: " << error.what() << "\n";
        }
        first.set_variable(0, x, {4});
        first.run();
        second.run();
        std::cout << "sum " << second.variable<float>(0, 4)[3] << " of " << first.variable<int64_t>(1, 1)[0];
        second.reset_variables();
        std::cout << ", after a reset of " << first.variable<int64_t>(1, 1)[0] << "\n";
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
