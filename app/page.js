() => {
  // Esc stops the run, or gives up the place in the queue, whichever is offered.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const id of ["stop", "leave"]) {
      const button = document.getElementById(id);
      if (button && !button.disabled && button.offsetParent !== null) button.click();
    }
  });
  // On a phone the switches start folded, so that the answers are near the question.
  if (window.matchMedia("(max-width: 900px)").matches) {
    const fold = () => {
      const head = document.querySelector("#settings > button.label-wrap");
      if (!head) return window.setTimeout(fold, 50);
      if (head.classList.contains("open")) head.click();
    };
    fold();
  }
}
