"""A child process that draws one small picture with the graphics library that MUJOCO_GL names.

Exits with 0 where it worked, else with 1 and a line that says why not. Run by `graphics.choose`, as
a script: a graphics library that isn't right may end the process.
"""

import os

SCENE = """
<mujoco><worldbody>
  <light pos="0 0 2"/> <geom type="sphere" size="0.3" rgba="1 0 0 1"/>
</worldbody></mujoco>
"""


def draw() -> float:
    """The spread of the picture's colours; 0 where all of it is one colour."""
    import mujoco  # reads MUJOCO_GL now

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, height=24, width=32) as renderer:
        renderer.update_scene(data)
        return float(renderer.render().std())


if __name__ == "__main__":
    why = ""
    try:
        if draw() < 1:
            why = "it draws nothing"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    print(why.splitlines()[0] if why else "", flush=True)
    os._exit(bool(why))  # at once: what is half made would print tracebacks at a usual end
